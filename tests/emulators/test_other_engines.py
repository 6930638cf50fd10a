"""A table of each cloud read by other engines, with the options that are made for them."""

from __future__ import annotations

import importlib.util
import uuid
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from delta_sharing_spark.access.directory.access import StorageToken
from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.interop import create_secret, storage_options
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from emulators.clouds import Cloud, put_table
from emulators.test_directory_on_clouds import CloudIssuer

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
IDS = list(range(12))
#: DuckDB's extensions as packages of PyPI, where they are installed: nothing is downloaded from elsewhere.
EXTENSIONS = {"aws": ("httpfs", "delta"), "azure": ("azure",)}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    built = DeltaTableBuilder(tmp_path_factory.mktemp("delta") / "table", SCHEMA, ["part"])
    return built.append(pa.table({"id": IDS, "part": [f"p{i % 3}" for i in IDS]}, SCHEMA)).checkpoint()


@pytest.fixture
def settings(cloud: Cloud) -> StorageSettings:
    return StorageSettings(endpoint=cloud.endpoint)


@pytest.fixture
def token(cloud: Cloud, table: DeltaTableBuilder) -> StorageToken:
    location = put_table(cloud, table.path, f"t{uuid.uuid4().hex[:8]}")
    return CloudIssuer(cloud).issue_token(parse_location(location))


def _files(table: DeltaTableBuilder, root: str) -> list[str]:
    names = [path.relative_to(table.path).as_posix() for path in table.path.rglob("part=*/*.parquet")]
    return [f"{root}/{name}" for name in names]


@pytest.mark.parametrize("engine", ["deltalake", "polars"])
def test_deltalake_and_polars(
    token: StorageToken, settings: StorageSettings, engine: Literal["deltalake", "polars"]
) -> None:
    library: Any = pytest.importorskip(engine)
    if token.kind == "gcp":
        with pytest.raises(CredentialError, match=f"{engine} cannot take"):
            storage_options(token, settings, engine=engine)
        return
    options = storage_options(token, settings, engine=engine)
    if engine == "deltalake":
        rows_read = library.DeltaTable(options.location, storage_options=options).to_pyarrow_table()
        assert sorted(rows_read["id"].to_pylist()) == IDS
    else:
        frame = library.scan_delta(options.location, storage_options=options)
        assert sorted(frame.filter(library.col("part") == "p1").collect()["id"].to_list()) == IDS[1::3]


def test_pandas_by_fsspec(table: DeltaTableBuilder, token: StorageToken, settings: StorageSettings) -> None:
    pandas = pytest.importorskip("pandas")
    if token.kind == "gcp":
        pytest.skip("the gcsfs that fsspec knows as gs asks Google by gRPC first, which the emulator does not speak")
    options = storage_options(token, settings)
    rows_read = [pandas.read_parquet(file, storage_options=options) for file in _files(table, options.location)]
    assert sorted(i for frame in rows_read for i in frame["id"]) == IDS


def _file_system(token: StorageToken, options: dict[str, Any]) -> Any:
    if token.kind == "gcp":
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem(skip_instance_cache=True, **options)
    import fsspec

    return fsspec.filesystem(token.location.scheme, skip_instance_cache=True, **options)


def test_duckdb_by_fsspec(table: DeltaTableBuilder, token: StorageToken, settings: StorageSettings) -> None:
    duckdb = pytest.importorskip("duckdb")
    options = storage_options(token, settings)
    files = _files(table, options.location)
    with duckdb.connect() as connection:
        connection.register_filesystem(_file_system(token, options))
        rows = connection.execute("SELECT id FROM read_parquet($files)", {"files": files}).fetchall()
    assert sorted(i for (i,) in rows) == IDS


def test_duckdb_by_its_secret(table: DeltaTableBuilder, token: StorageToken, settings: StorageSettings) -> None:
    duckdb = pytest.importorskip("duckdb")
    if token.kind == "gcp":
        with pytest.raises(CredentialError, match="duckdb cannot take"):
            storage_options(token, settings, engine="duckdb")
        return
    options = storage_options(token, settings, engine="duckdb")
    with duckdb.connect() as connection:
        for name in EXTENSIONS[token.kind]:
            connection.execute(f"LOAD '{_extension(name)}'")
        connection.execute(create_secret(options))
        files = _files(table, options.location)
        rows = connection.execute("SELECT id FROM read_parquet($files)", {"files": files}).fetchall()
        assert sorted(i for (i,) in rows) == IDS
        if token.kind == "aws":
            rows = connection.execute(f"SELECT id FROM delta_scan('{options.location}')").fetchall()
            assert sorted(i for (i,) in rows) == IDS


def _extension(name: str) -> Path:
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    if package is None or package.origin is None:
        pytest.skip(f"DuckDB's extension {name} is not installed (the package duckdb-extension-{name})")
    return next(Path(package.origin).parent.rglob(f"{name}.duckdb_extension"))
