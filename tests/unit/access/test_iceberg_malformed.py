"""Damages each part of an Iceberg table: what comes of it is an error of ours in one line, or the rows, and never anything else."""

from __future__ import annotations

import copy
import io
import json
import random
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from delta_sharing_spark.access.iceberg.deletes import DeleteIndex
from delta_sharing_spark.access.iceberg.manifests import DATA, Manifest, read_manifest, read_manifest_list
from delta_sharing_spark.access.iceberg.metadata import parse_metadata
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.schema.types import Field, Primitive
from support.iceberg_lake import STORED, newest_metadata

if TYPE_CHECKING:
    from pathlib import Path

#: Values that stand where others belong.
STRANGE: list[Any] = [
    None, True, -1, 0, 1 << 70, 1.5, "", "x", "\ud800", [], [[]], {}, {"type": "struct"}, "struct", [None], {"x": {}},
]  # fmt: skip
#: Damaged documents of each kind; the long run is 10^5: ROUNDS=25000.
ROUNDS = 400


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def damaged(tree: Any, draw: random.Random) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, 3)):
        *path, last = draw.choice(places(tree)[1:])
        within = tree
        for key in path:
            within = within[key]
        if draw.random() < 0.2:
            del within[last]
        else:
            within[last] = draw.choice(STRANGE)
        if len(places(tree)) < 2:
            break
    return tree


def one_line(error: DeltaSharingError) -> None:
    assert "\n" not in str(error)
    assert str(error)


def documents() -> list[Any]:
    return [json.loads(newest_metadata(path.parent).read_text()) for path in sorted(STORED.glob("lake/db/*/metadata"))]


def test_metadata_documents() -> None:
    draw, known = random.Random(1), documents()
    for number in range(ROUNDS):
        try:
            parse_metadata(damaged(known[number % len(known)], draw), "s.db.t")
        except DeltaSharingError as error:
            one_line(error)


def avro_files(name: str) -> list[Path]:
    return sorted(
        path for path in STORED.glob("lake/db/*/metadata/*.avro") if path.name.startswith("snap-") == (name == "list")
    )


def bent(data: bytes, draw: random.Random) -> bytes:
    """Bytes that are cut, changed or repeated; half of the time behind the header, where a checksum does not find them."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(changed))
        match draw.randrange(4):
            case 0:
                changed[at] = draw.randrange(256)
            case 1:
                del changed[at : at + draw.randint(1, 40)]
            case 2:
                changed[at:at] = draw.randbytes(draw.randint(1, 12))
            case _:
                changed[at : at + 9] = b"\xff" * 9
        if not changed:
            break
    return bytes(changed)


def uncompressed(data: bytes) -> bytes:
    reader = fastavro.reader(io.BytesIO(data))
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, list(reader), metadata={}, codec="null")
    return out.getvalue()


@pytest.mark.parametrize("kind", ["list", "manifest"])
def test_bytes_of_manifests(kind: str) -> None:
    draw = random.Random(2)
    files = [uncompressed(path.read_bytes()) for path in avro_files(kind)]
    assert files
    for number in range(ROUNDS):
        data = bent(files[number % len(files)], draw)
        try:
            if kind == "list":
                read_manifest_list(data, "s3://lake/list.avro")
                continue
            manifest = Manifest("s3://lake/m.avro", len(data), 0, number % 2, 5)
            entries = list(read_manifest(data, manifest))
            DeleteIndex(
                (entry for entry in entries if entry.content != DATA),
                lambda number, path: Field(f"_{number}", Primitive("long")),
                lambda spec: False,
            )
        except DeltaSharingError as error:
            one_line(error)


def test_a_list_of_nothing_does_not_hang() -> None:
    """An array whose items take no bytes could have 2^60 of them in ten bytes."""
    schema = {
        "type": "record", "name": "manifest_file",
        "fields": [{"name": "manifest_path", "type": "string"}, {"name": "x", "type": {"type": "array", "items": "null"}}],
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.writer(out, schema, [{"manifest_path": "s3://lake/m.avro", "x": [None]}], codec="null")
    with pytest.raises(DeltaSharingError, match="it holds lists of nothing"):
        read_manifest_list(out.getvalue(), "s3://lake/list.avro")
