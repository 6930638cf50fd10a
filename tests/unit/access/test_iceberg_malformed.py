"""Damages each part of an Iceberg table: what comes of it is an error of ours in one line, or the rows, and never anything else."""

from __future__ import annotations

import copy
import io
import json
import os
import random
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.iceberg import manifests
from delta_sharing_spark.access.iceberg.avro import AvroFile
from delta_sharing_spark.access.iceberg.deletes import DeleteIndex
from delta_sharing_spark.access.iceberg.manifests import DATA, Manifest, read_manifest, read_manifest_list
from delta_sharing_spark.access.iceberg.metadata import PartitionField, parse_metadata
from delta_sharing_spark.access.iceberg.pruning import EntryPruner
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.predicates.tree import Column, IsNull
from delta_sharing_spark.scan.delete_files import PATH_ID
from delta_sharing_spark.scan.plan import DeletionVector, FileTask
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.types import Field, Primitive
from support.iceberg_lake import STORED, IcebergLake, newest_metadata
from unit.scan.local_access import Bytes, LocalAccess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Values that stand where others belong.
STRANGE: list[Any] = [
    None, True, -1, 0, 1 << 70, 1.5, "", "x", "\ud800", [], [[]], {}, {"type": "struct"}, "struct", [None], {"x": {}},
]  # fmt: skip
#: Damaged documents of each kind; the long run is 10^5: ROUNDS=20000 in the environment.
ROUNDS = int(os.environ.get("ROUNDS", "400"))


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
            entries = list(read_manifest(data, manifest, (1, PATH_ID)))
            DeleteIndex(
                (entry for entry in entries if entry.content != DATA),
                lambda ids, path: tuple(Field(f"_{number}", Primitive("long")) for number in ids),
                lambda spec: [PartitionField(1000, 1, "identity", "part")],
                "",
            )
        except DeltaSharingError as error:
            one_line(error)


class Decoded(list[Any]):
    """Records as of an Avro file, whatever they hold."""

    schema: Mapping[str, Any] = MappingProxyType({})
    metadata = schema


def records(name: str) -> list[dict[str, Any]]:
    """Those of stored files, with the bounds of all fields."""
    keys = dict.fromkeys(("lower_bounds", "upper_bounds", "null_value_counts"), (PATH_ID, *range(40)))
    return [record for path in avro_files(name) for record in AvroFile(path.read_bytes(), path.name, keys)]


def test_records_of_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are none of a manifest, in records that Avro could hold: they are read and pruned by."""
    draw, given = random.Random(3), [records("list"), records("manifest")]
    metadata = parse_metadata(documents()[-1], "s.db.t")
    column = metadata.schemas[metadata.current_schema].fields[0]
    condition = IsNull(Column((column.name,), column.type))
    one: Any = SimpleNamespace(prune=condition, columns=metadata.schemas[metadata.current_schema])
    for number in range(ROUNDS):
        kind = number % 2
        bent_record = damaged(draw.choice(given[kind]), draw)
        monkeypatch.setattr(manifests, "AvroFile", lambda data, path, keys=(), one=bent_record: Decoded([one]))
        pruner = EntryPruner(one, metadata.specs)
        try:
            if kind == 0:
                for manifest in read_manifest_list(b"", "s3://lake/list.avro"):
                    pruner.may_hold(manifest)
                continue
            spec_id = draw.choice(list(metadata.specs))
            entries = list(read_manifest(b"", Manifest("s3://lake/m.avro", 1, spec_id, draw.randrange(2), 5), ()))
            index = DeleteIndex(
                (entry for entry in entries if entry.content != DATA),
                lambda ids, path: tuple(Field(f"_{number}", Primitive("long")) for number in ids),
                lambda spec: [PartitionField(1000, 1, "identity", "part")],
                "",
            )
            for entry in entries:
                pruner.may_match(entry)
                index.of(entry)
        except DeltaSharingError as error:
            one_line(error)


class FilesOfTheLake(LocalAccess):
    """The stored files by their locations, but for those that were damaged."""

    def open(self, task: FileTask) -> Bytes:
        return Bytes(task.id, self._data(task.location))

    def open_vector(self, task: FileTask, vector: DeletionVector) -> Bytes:
        return Bytes(
            f"deletion vector {vector.unique_id}", self._data(vector.path)[vector.frame.start : vector.frame.end]
        )

    def _data(self, location: str) -> bytes:
        found = self.files.get(location)
        return found if found is not None else (STORED / "lake" / location.removeprefix("s3://lake/")).read_bytes()


def test_delete_files() -> None:
    """Position and equality deletes and vectors, cut and changed: rows of the table or an error."""
    draw = random.Random(4)
    with IcebergLake() as lake:
        client = SharingClient(lake.profile())
        splits = [
            (name, split)
            for name in ("positions", "equality", "vectors", "everything")
            for split in client.table(f"s.db.{name}").scan().plan().splits
        ]
    access = FilesOfTheLake()
    sound = {name: sum(batch.num_rows for batch in read_split(replace(split, access=access))) for name, split in splits}
    assert all(sound.values())
    for number in range(ROUNDS):
        _, split = splits[number % len(splits)]
        tasks = [piece.task for piece in split.slices]
        places = sorted({delete.location for task in tasks for delete in task.deletes} | {
            task.deletion_vector.path for task in tasks if task.deletion_vector is not None
        })  # fmt: skip
        victim = draw.choice(places)
        access = FilesOfTheLake({victim: bent(FilesOfTheLake()._data(victim), draw)})
        try:
            # Of a table of its own no file is kept from the round before.
            slices = tuple(replace(piece, task=replace(piece.task, deletes=tuple(
                replace(one, namespace=str(number)) for one in piece.task.deletes))) for piece in split.slices)  # fmt: skip
            for batch in read_split(replace(split, access=access, slices=slices)):
                batch.validate(full=True)
        except DeltaSharingError as error:
            one_line(error)
