"""The surfaces: what is drawn for a case of each, how it is read, and the rows of what nobody damaged."""

from __future__ import annotations

import io
import json
import random
import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.access.table_shape import with_change_columns
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.deltalog.actions import vector_from
from delta_sharing_spark.deltalog.commit_feed import load_commits
from delta_sharing_spark.deltalog.replay import read_snapshot
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.scan.plan import FileTask, ReadSpec
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.types import Field, Primitive, Struct, parse_schema, without_mapping
from delta_sharing_spark.sharing.profile import load_profile
from delta_sharing_spark.testing.tables.rewrites import encode, frame, z85_encode
from fuzz import mutations
from fuzz.flight import Flights
from fuzz.lines import Lines
from fuzz.replay import Replay
from fuzz.surface import Case, Surface
from fuzz.tables import Files, Rows, data, log_files, read_tasks, rows_of, store, table
from fuzz.wire import Wire

#: Answers that never come are given up on within a case's time.
QUICK = {"connectTimeout": "2s", "readTimeout": "3s", "retryTimeout": "1s"}
NAME = "share.default.t"


class Answers(Surface):
    """Answers of the sharing server: metadata, versions, queries and change feeds, in both formats."""

    name = "answers"

    @cached_property
    def replay(self) -> Replay:
        replay = Replay(NAME, table().path)
        self.known: dict[tuple[str, bool], tuple[Rows, dict[str, bytes]]] = {}
        for format_ in ("parquet", "delta"):
            for feed in (False, True):
                if format_ == "parquet":
                    continue  # the table has deletion vectors: it is shared in the delta format alone
                rows, _ = self._read(replay, format_, feed)
                self.known[format_, feed] = rows, dict(replay.answers)
        return replay

    def _read(self, replay: Replay, format_: str, feed: bool, where: str | None = None) -> tuple[Rows, int]:
        client = SharingClient(replay.profile, responseFormat=format_, **QUICK)
        shared = client.table(NAME)
        scan = shared.changes(starting_version=1, where=where) if feed else shared.scan(where=where)
        rows = rows_of(scan.to_arrow().to_batches())
        return rows, 0

    def draw(self, draw: random.Random) -> Case:
        replay = self.replay
        key = draw.choice(sorted(self.known))
        self._expected, answers = self.known[key]
        place = draw.choice(sorted(answers))
        damaged, strict = mutations.lines(answers[place], draw)
        where = draw.choice([None, None, "id >= 0", "p = 'north' OR id >= 0"])

        def case() -> tuple[Rows, bool]:
            replay.instead = {**answers, place: damaged}
            try:
                return self._read(replay, *key, where)[0], strict
            finally:
                replay.instead = {}

        return case

    def expected(self) -> Rows:
        _ = self.replay
        return getattr(self, "_expected", [])


class Credentials(Surface):
    """Listings, and temporary credentials with the directory that they open."""

    name = "credentials"

    @cached_property
    def replay(self) -> Replay:
        replay = Replay(NAME, table().path, access_modes=("dir",))
        self._rows, self._listed = self._read(replay), self._list(replay)
        self._answers = dict(replay.answers)
        return replay

    def _read(self, replay: Replay) -> Rows:
        client = SharingClient(replay.profile, accessMode="dir", **QUICK)
        return rows_of(client.table(NAME).scan().to_arrow().to_batches())

    def _list(self, replay: Replay) -> Rows:
        client = SharingClient(replay.profile, **QUICK)
        return sorted(str(table.name) for table in client.list_all_tables())

    def draw(self, draw: random.Random) -> Case:
        replay = self.replay
        place = draw.choice(sorted(self._answers))
        damaged, strict = mutations.lines(self._answers[place], draw)
        listing = draw.random() < 0.3
        self._expected = self._listed if listing else self._rows

        def case() -> tuple[Rows, bool]:
            replay.instead = {**self._answers, place: damaged}
            try:
                # A listing has no other reader to compare with: only its errors are judged.
                return (self._list(replay), False) if listing else (self._read(replay), strict)
            finally:
                replay.instead = {}

        return case

    def expected(self) -> Rows:
        _ = self.replay
        return getattr(self, "_expected", self._rows)


KINDS = ["", "classic", "multipart", "v2-json", "v2-parquet", "v2-classic"]


class Logs(Surface):
    """Commits, checkpoints of every kind, sidecars and ``_last_checkpoint``."""

    name = "logs"

    @cached_property
    def logs(self) -> dict[str, dict[str, bytes]]:
        return {kind: log_files(kind) for kind in KINDS}

    @cached_property
    def rows(self) -> dict[bool, Rows]:
        return {False: self._snapshot(self.logs[""], None), True: self._feed(self.logs[""])}

    def _spec(self, protocol: Any, metadata: Any, feed: bool) -> ReadSpec:
        mapping = metadata.mapping(protocol, NAME)
        schema = columns = metadata.schema(NAME) if mapping != "none" else without_mapping(metadata.schema(NAME))
        if feed:
            schema = with_change_columns(
                schema, parse_options({"path": "p.share#a.b.c", "readChangeFeed": "true", "startingVersion": "1"})
            )
        known = {f.name.lower(): f for f in columns.fields}
        partitions = [known[name.lower()] for name in metadata.partition_columns if name.lower() in known]
        return ReadSpec(
            NAME,
            schema,
            schema,
            tuple(f.name for f in partitions),
            partition_keys({f.name: f.physical_name for f in partitions}),
            mapping,
            change_feed=feed,
        )

    def _snapshot(self, files: dict[str, bytes], draw: random.Random | None) -> Rows:
        snapshot = read_snapshot(store(files, draw), lambda snapshot: snapshot, table=NAME)
        return read_tasks(self._spec(snapshot.protocol, snapshot.metadata, False), list(snapshot.tasks()), Files())

    def _feed(self, files: dict[str, bytes]) -> Rows:
        rows: Rows = []
        for commit in load_commits(store(files), 1, table=NAME, feed=True):
            assert commit.head is not None
            spec = self._spec(commit.head.protocol, commit.head.metadata, True)
            rows += [re.sub(r"'_commit_timestamp': [^}]*", "", row) for row in read_tasks(spec, commit.tasks, Files())]
        return sorted(rows)

    def draw(self, draw: random.Random) -> Case:
        files = dict(self.logs[draw.choice(KINDS)])
        feed = draw.random() < 0.25
        checkpoints = [n for n in files if ".checkpoint." in n or "_sidecars" in n or "_last" in n]
        commits = [n for n in files if n not in checkpoints and n.endswith(".json")]
        name = draw.choice(commits if feed or not checkpoints or draw.random() < 0.3 else checkpoints)
        if name.endswith(".parquet"):
            files[name], strict = _damaged_parquet(files[name], draw)
        elif "_last" in name:
            files[name], strict = (
                mutations.byte(files[name], draw) if draw.random() < 0.3 else _json_file(files[name], draw)
            )
        else:
            files[name], strict = mutations.lines(files[name], draw)
        self._expected = self.rows[feed]
        return lambda: (self._feed(files) if feed else self._snapshot(files, draw), strict)

    def expected(self) -> Rows:
        return getattr(self, "_expected", self.rows[False])


def _json_file(content: bytes, draw: random.Random) -> tuple[bytes, bool]:
    tree, strict = mutations.json_value(json.loads(content), draw)
    return json.dumps(tree).encode(), strict


def _damaged_parquet(content: bytes, draw: random.Random) -> tuple[bytes, bool]:
    """Bytes of the footer or of pages; or a column lost, renamed, or of another type."""
    if draw.random() < 0.7:
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        return mutations.byte(content, draw, footer if draw.random() < 0.7 else 0)
    rows = pq.read_table(pa.BufferReader(content))
    index = draw.randrange(rows.num_columns)
    name = rows.column_names[index]
    kind = draw.randrange(4)
    if kind == 0:
        rows = rows.drop_columns([name])
    elif kind == 1:
        rows = rows.rename_columns(
            [draw.choice(["x", name.upper(), ""]) if n == name else n for n in rows.column_names]
        )
    elif kind == 2:
        rows = pa.concat_tables([rows, rows.slice(draw.randrange(rows.num_rows), 1)])
    else:
        types = [pa.int64(), pa.string(), pa.binary(), pa.list_(pa.int64()), pa.struct([("x", pa.int64())])]
        rows = rows.set_column(index, name, pa.nulls(rows.num_rows, draw.choice(types)))
    out = io.BytesIO()
    pq.write_table(rows, out)
    # A row more may be a remove, and without its removes or sidecars a checkpoint may be another one.
    return out.getvalue(), kind < 2 and name == "add"


class DataFiles(Surface):
    """Parquet files and their deletion vectors, whole and in slices, filtered and not."""

    name = "parquet"
    _schema = Struct(
        (
            Field("id", Primitive("long")),
            Field("s", Primitive("string")),
            Field("p", Primitive("string")),
            parse_schema(
                '{"type":"struct","fields":[{"name":"n","type":{"type":"struct","fields":[{"name":"a","type":"long"},'
                '{"name":"b","type":{"type":"array","elementType":"long","containsNull":true}}]}}]}'
            ).fields[0],
        )
    )

    @cached_property
    def files(self) -> list[bytes]:
        rows = data(0, 60)
        encoded = []
        for how in (
            {"row_group_size": 20},
            {"row_group_size": 25, "write_page_index": True, "data_page_version": "2.0", "use_dictionary": False},
            {"compression": "none", "write_page_checksum": True},
            {"compression": "zstd", "column_encoding": {"id": "DELTA_BINARY_PACKED"}, "use_dictionary": False},
            {"compression": "gzip", "store_schema": False, "write_statistics": False},
        ):
            out = io.BytesIO()
            pq.write_table(rows, out, **how)
            encoded.append(out.getvalue())
        return encoded

    def draw(self, draw: random.Random) -> Case:
        content = draw.choice(self.files)
        payload = encode([3, 5, 40])
        vector_file = b"\x01" + frame(payload)
        descriptor = {
            "storageType": "p", "pathOrInlineDv": "memory://m/v", "offset": 1, "sizeInBytes": len(payload), "cardinality": 3,
        }  # fmt: skip
        if draw.random() < 0.3:
            inline = z85_encode(payload + b"\0" * (-len(payload) % 4))
            descriptor |= {"storageType": "i", "pathOrInlineDv": inline, "offset": None}
        strict = False
        what = draw.randrange(10)
        if what == 0:
            vector_file, _ = mutations.byte(vector_file, draw, 1)
            strict = True  # a checksum stands over it
        elif what == 1:
            key = draw.choice(sorted(descriptor))
            descriptor[key] = draw.choice(mutations.HOSTILE)
        elif what == 2 and descriptor["storageType"] == "i":
            text = str(descriptor["pathOrInlineDv"]).encode()
            descriptor["pathOrInlineDv"] = mutations.byte(text, draw)[0].decode(errors="replace")
        else:
            footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            content, _ = mutations.byte(content, draw, footer if draw.random() < 0.6 else 0)
        where = parse_where("id >= 0 AND n.a >= 0", self._schema) if draw.random() < 0.5 else None
        narrow = draw.random() < 0.2
        schema = Struct(self._schema.fields[:1]) if narrow else self._schema
        full = self._schema if where is not None else schema
        spec = ReadSpec(NAME, schema, full, predicate=where, prune=where, is_projected=narrow)
        self._expected = self._undamaged[narrow]
        slices = draw.choice([1, 1, 2, 5])

        def case() -> tuple[Rows, bool]:
            vector = vector_from(descriptor, "memory://m", "f")
            task = FileTask("f", "memory://m/f", len(content), deletion_vector=vector)
            return read_tasks(
                spec, [task], Files({"memory://m/f": content, "memory://m/v": vector_file}), slices
            ), strict

        return case

    @cached_property
    def _undamaged(self) -> dict[bool, Rows]:
        rows = [row for row in data(0, 60).to_pylist() if row["id"] not in (3, 5, 40)]
        return {False: sorted(map(repr, rows)), True: sorted(repr({"id": row["id"]}) for row in rows)}

    def expected(self) -> Rows:
        return getattr(self, "_expected", self._undamaged[False])


class Profiles(Surface):
    """Profile files: bytes and fields."""

    name = "profiles"

    _KINDS = (
        {"type": "bearer_token", "bearerToken": "t", "expirationTime": "2099-01-01T00:00:00Z"},
        {"type": "oauth_client_credentials", "tokenEndpoint": "https://h/t", "clientId": "c", "clientSecret": "s", "scope": "x"},
        {"type": "basic", "username": "u", "password": "p"},
        {"type": "oauth_jwt_bearer_private_key_jwt", "tokenEndpoint": "https://h/t", "clientId": "c", "issuer": "i", "audience": "a", "scope": "s", "privateKey": {"privateKeyFile": "/nonexistent", "keyId": "k", "algorithm": "RS256"}},
    )  # fmt: skip

    def draw(self, draw: random.Random) -> Case:
        fields = {"shareCredentialsVersion": 2, "endpoint": "https://h/delta/", **draw.choice(self._KINDS)}
        if draw.random() < 0.6:
            tree, _ = mutations.json_value(fields, draw)
            content = json.dumps(tree).encode()
        else:
            content, _ = mutations.byte(json.dumps(fields).encode(), draw)
        path = table().path.parent / f"{draw.randrange(4)}.share"

        def case() -> tuple[Rows, bool]:
            Path(path).write_bytes(content)
            profile = load_profile(str(path))
            assert "t" not in repr(profile.endpoint[:0])
            return [], False

        return case

    def expected(self) -> Rows:
        return self._undamaged

    @cached_property
    def _undamaged(self) -> Rows:
        for number in range(8):  # imports are not what a case may take
            with suppress(DeltaSharingError):
                self.draw(random.Random(number))()
        return []


class Options(Surface):
    """Options of a load, ``where`` and ``columns`` among them."""

    name = "options"

    @cached_property
    def replay(self) -> Replay:
        replay = Replay(NAME, table().path)
        client = SharingClient(replay.profile, **QUICK)
        self._rows = rows_of(client.table(NAME).scan().to_arrow().to_batches())
        return replay

    def draw(self, draw: random.Random) -> Case:
        from delta_sharing_spark.options.declared import OPTIONS

        replay = self.replay
        options: dict[str, Any] = {}
        for _ in range(draw.choice([1, 1, 2, 3])):
            name = draw.choice(
                [o.name for o in OPTIONS if o.name not in ("path", "proxy", "cacheDir", "caBundle", "columns")]
            )
            if name == "where":
                text, _ = mutations.byte(b"id > 3 AND s LIKE 'text%' OR n.a IN (1, 2) AND NOT p = 'x'", draw)
                options[name] = text.decode(errors="replace")
            else:
                options[name] = draw.choice([*mutations.HOSTILE, "true", "url", "delta", "id", "`id`", "n.a", "2020-01-01", "5m", "1g"])  # fmt: skip
        columns = draw.choice([None, None, None, *mutations.HOSTILE])

        def case() -> tuple[Rows, bool]:
            shared = SharingClient(replay.profile, **QUICK).table(NAME)
            scan = shared.scan(columns=columns, **{**QUICK, **options})
            return rows_of(scan.to_arrow().to_batches()), False

        return case

    def expected(self) -> Rows:
        _ = self.replay
        return self._rows


class Offsets(Surface):
    """Offsets that Spark hands back to a stream."""

    name = "offsets"

    @cached_property
    def reader(self) -> Any:
        from pyspark.sql.types import StructType

        from delta_sharing_spark.schema.types import spark_schema_json
        from delta_sharing_spark.spark.streaming import INITIAL, _StreamReader

        self.replay = Replay(NAME, table().path)
        profile = table().path.parent / "stream.share"
        profile.write_text(json.dumps(self.replay.profile))
        client = SharingClient(self.replay.profile, **QUICK)
        schema = StructType.fromJson(spark_schema_json(client.table(NAME).scan().schema))
        options = {"path": f"{profile}#{NAME}", "responseFormat": "delta", "ignoreChanges": "true", **QUICK}
        reader = _StreamReader(options, schema, columns_chosen=False)
        from delta_sharing_spark.access.stream.planner import Limits

        self._offsets = [dict(INITIAL)]
        for _ in range(3):
            self._offsets.append(reader._advance(self._offsets[-1], Limits(files=1)))
        return reader

    def _read(self, start: dict[str, Any], end: dict[str, Any]) -> Rows:
        return rows_of([b for p in self.reader.partitions(start, end) for b in self.reader.read(p)])

    def draw(self, draw: random.Random) -> Case:
        _ = self.reader
        first = draw.randrange(len(self._offsets) - 1)
        pair = [self._offsets[first], draw.choice(self._offsets[first + 1 :])]
        self._expected = self._read(*pair)
        place = draw.randrange(2)
        pair[place], _strict = mutations.json_value(pair[place], draw)
        # Another number is another place of the stream; nothing beyond the offset tells.
        return lambda: (self._read(*json.loads(json.dumps(pair))), False)

    def expected(self) -> Rows:
        _ = self.reader
        return getattr(self, "_expected", [])


SURFACES: dict[str, type[Surface]] = {
    kind.name: kind
    for kind in (Answers, Credentials, Logs, DataFiles, Profiles, Options, Offsets, Flights, Wire, Lines)
}
