"""Reads and writes unsigned numbers in seven bits a byte, as Thrift's compact protocol, Parquet and protobuf do."""

from __future__ import annotations

#: Bytes of a number of 64 bits.
_LONGEST = 10


def append_varint(out: bytearray, number: int) -> None:
    """Append an unsigned number to ``out``."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position``, and the position behind it.

    Raises:
        IndexError: The bytes end within the number.
        ValueError: The number has more than 64 bits.
    """
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    number = byte & 0x7F
    for index in range(1, _LONGEST):
        byte = data[position + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, position + index + 1
    raise ValueError(f"a number of more than {_LONGEST} bytes")


def zigzag(number: int) -> int:
    """A signed number of 64 bits as an unsigned one: small where its magnitude is."""
    return (number << 1) ^ (number >> 63)


def unzigzag(number: int) -> int:
    """The signed number that ``zigzag`` made ``number`` of."""
    return (number >> 1) ^ -(number & 1)
