"""Makes Python's decimals of Arrow's, most of them as the sum of two that are kept."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

#: Decimals with so many digits are integers of 64 bits.
MOST_DIGITS = 18
#: The low bits of a number, whose decimals are kept once: 100 bytes each, as are the multiples of what is above them.
_LOW_BITS = 14
_LOW = 1 << _LOW_BITS
#: Multiples that are kept at once.
_MOST_HIGH = 1 << 16


class DecimalObjects:
    """Makes the decimals of one column, each an integer times the unit of the column's scale.

    A product costs half of what Arrow pays, which goes by text. A sum of two decimals that are kept, of a number's high
    bits and of its low ones, costs two thirds of a product. Either holds Python's lock all the while.
    """

    def __init__(self, scale: int) -> None:
        import numpy as np

        self._times_unit = decimal.Decimal((0, (1,), -scale)).__mul__
        #: The decimals of the numbers below ``_LOW``; none until a batch is worth them.
        self._low: npt.NDArray[np.object_] = np.empty(0, object)
        #: The decimals of ``_LOW`` times the numbers from ``_first`` on.
        self._high: npt.NDArray[np.object_] = np.empty(0, object)
        self._first = 0

    def of(self, values: pa.Array) -> npt.NDArray[np.object_]:
        """The decimals of a batch.

        Args:
            values: Of ``decimal128`` with at most ``MOST_DIGITS`` digits, and of the column's scale.

        Returns:
            As many objects, with None for NULL.
        """
        import pyarrow as pa

        # The same bytes read as integers of 128 bits.
        whole = pa.decimal128(MOST_DIGITS, 0)
        integers = pa.Array.from_buffers(whole, len(values), values.buffers(), values.null_count, values.offset)
        numbers = integers.cast(pa.int64()).fill_null(0).to_numpy()
        # A user's own context, which may round, is not asked. A multiple may have a digit more than its number.
        with decimal.localcontext(decimal.Context(prec=MOST_DIGITS + 1)):
            objects = self._sums(numbers) if self._keep(numbers) else self._products(numbers)
        if values.null_count:
            objects[values.is_null().to_numpy(zero_copy_only=False)] = None
        return objects

    def _products(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        import numpy as np

        return np.fromiter(map(self._times_unit, numbers.tolist()), dtype=object, count=len(numbers))

    def _sums(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        sums: npt.NDArray[np.object_] = (
            self._high[(numbers >> _LOW_BITS) - self._first] + self._low[numbers & (_LOW - 1)]
        )
        return sums

    def _keep(self, numbers: npt.NDArray[np.int64]) -> bool:
        """Keep all that the sums of these numbers need; False where making it costs more than they save."""
        import numpy as np

        if len(numbers) < _LOW:
            return False
        least, most = int(numbers.min()) >> _LOW_BITS, int(numbers.max()) >> _LOW_BITS
        high, first = self._high, self._first
        if not len(high) or max(first + len(high), most + 1) - min(first, least) > _MOST_HIGH:
            high, first = high[:0], least  # the column begins, or has moved on
        end = first + len(high)
        missing = max(first - least, 0) + max(most + 1 - end, 0)
        if missing > len(numbers) // 4:
            return False
        if missing:
            below, above = (self._products(np.arange(*ends) * _LOW) for ends in ((least, first), (end, most + 1)))
            self._high, self._first = np.concatenate([below, high, above]), min(first, least)
        if not len(self._low):
            self._low = self._products(np.arange(_LOW))
        return True
