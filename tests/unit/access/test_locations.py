"""Locations and which of them lies within which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import AccessModeError, CredentialError
from delta_sharing_spark.storage.clouds.registry import parse_location

ONELAKE = "onelake.dfs.fabric.microsoft.com"
#: A workspace's own host, by its id and the id's first two digits (OneLake's private links).
PRIVATE = "3fa85f6457174562b3fc2c963f66afa6.z3f.dfs.fabric.microsoft.com"


@pytest.mark.parametrize(
    ("text", "kind", "path", "shown"),
    [
        ("s3://bucket/a/b", "aws", "bucket/a/b", "s3://bucket/a/b"),
        ("S3A://bucket/a/", "aws", "bucket/a", "s3a://bucket/a"),
        ("s3://bucket", "aws", "bucket", "s3://bucket"),
        ("abfss://cont@acct.dfs.core.windows.net/a", "azure", "cont/a", "abfss://cont@acct.dfs.core.windows.net/a"),
        ("wasbs://cont@acct.blob.core.windows.net/a", "azure", "cont/a", "wasbs://cont@acct.blob.core.windows.net/a"),
        ("wasb://cont@acct.blob.core.windows.net/a", "azure", "cont/a", "wasb://cont@acct.blob.core.windows.net/a"),
        ("abfss://c@acct.z12.dfs.storage.azure.net/a", "azure", "c/a", "abfss://c@acct.z12.dfs.storage.azure.net/a"),
        ("abfs://cont@Acct.dfs.core.windows.net/a", "azure", "cont/a", "abfs://cont@acct.dfs.core.windows.net/a"),
        ("s3://b//b", "aws", "b//b", "s3://b//b"),
        ("s3://b///a//b//", "aws", "b///a//b", "s3://b///a//b"),
        ("gs://b//", "gcp", "b", "gs://b"),
        (
            f"abfss://My_Space@{ONELAKE}/L.Lakehouse",
            "azure",
            "My_Space/L.Lakehouse",
            f"abfss://My_Space@{ONELAKE}/L.Lakehouse",
        ),
        (f"abfss://Ä b&c@{ONELAKE}/x", "azure", "Ä b&c/x", f"abfss://%C3%84%20b%26c@{ONELAKE}/x"),
        (f"abfss://Ä%20b@{ONELAKE}/x%20y", "azure", "Ä b/x%20y", f"abfss://%C3%84%20b@{ONELAKE}/x%20y"),
        (f"abfss://w@westus-{ONELAKE}/x", "azure", "w/x", f"abfss://w@westus-{ONELAKE}/x"),
        (f"abfss://w@{PRIVATE}/x", "azure", "w/x", f"abfss://w@{PRIVATE}/x"),
        ("gs://bucket/a#b?c", "gcp", "bucket/a#b?c", "gs://bucket/a#b?c"),
        ("file:/tmp/t", "local", "/tmp/t", "file:///tmp/t"),
        ("file:///tmp/t/", "local", "/tmp/t", "file:///tmp/t"),
        ("/tmp/t", "local", "/tmp/t", "file:///tmp/t"),
    ],
)
def test_taking_apart(text: str, kind: str, path: str, shown: str) -> None:
    location = parse_location(text)
    assert (location.kind, location.path, str(location)) == (kind, path, shown)
    assert parse_location(str(location)) == location


@pytest.mark.parametrize("text", ["oss://b/t", "hdfs://nn/t", "https://h/t", "t", "", "dbfs:/t", "adl://a.b.c/t"])
def test_unsupported_schemes_point_to_url_mode(text: str) -> None:
    with pytest.raises(AccessModeError, match="accessMode=url"):
        parse_location(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3:///t",
        "s3:bucket/t",
        "s3://user:pw@bucket/t",
        "s3://bucket/a/../b",
        "s3://bucket/./b",
        "file:///a/../etc",
        "file://host/a",
        "abfss://acct.dfs.core.windows.net/a",
        "abfss://cont@evil/a",
        "abfss://cont@acct.dfs.core.windows.net;AccountKey=x/a",
        "abfss://cont@acct.dfs.core.windows.net@evil.com/a",
        "gs://b ucket/a",
        "abfss://My_Space@acct.dfs.core.windows.net/a",
        f"abfss://a%2Fb@{ONELAKE}/a",
        f"abfss://..@{ONELAKE}/a",
        f"abfss://a%0Ab@{ONELAKE}/a",
        f"abfss://@{ONELAKE}/a",
        "abfss://w@3fa85f64.zxy.dfs.fabric.microsoft.com/a",
        "abfss://c@a.b.dfs.core.windows.net/t",
    ],
)
def test_malformed_locations_are_refused(text: str) -> None:
    with pytest.raises(CredentialError):
        parse_location(text)


@pytest.mark.parametrize(
    ("outer", "inner", "covers"),
    [
        ("s3://b/table", "s3://b/table", True),
        ("s3://b/table", "s3a://b/table/x", True),
        ("s3n://b/table", "s3://b/table/x", True),
        ("s3://b/table", "s3://b/table2/x", False),
        ("s3://b/table/x", "s3://b/table", False),
        ("s3://b", "s3://b/anything", True),
        ("s3://b/t", "gs://b/t", False),
        ("s3://b//t", "s3://b/t/x", True),
        ("s3://b/t", "s3://b//t/x", True),
        ("s3://b/a//t", "s3://b/a/t2", False),
        (f"abfss://My_Work space@{ONELAKE}/t", f"abfss://My_Work%20space@{ONELAKE}/t/x", True),
        ("s3://b/t", "s3://c/t", False),
        ("abfss://c@a.dfs.core.windows.net/t", "wasbs://c@a.blob.core.windows.net/t/x", True),
        ("abfss://c@a.z1.dfs.storage.azure.net/t", "wasb://c@a.z1.blob.storage.azure.net/t/x", True),
        ("abfss://c@a.z1.dfs.storage.azure.net/t", "abfss://c@a.z2.dfs.storage.azure.net/t/x", False),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.usgovcloudapi.net/t/x", False),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://d@a.dfs.core.windows.net/t/x", False),
        ("file:/tmp/t", "file:///tmp/t/x", True),
        ("file:/tmp/t", "file:///tmp/tt", False),
    ],
)
def test_covering(outer: str, inner: str, covers: bool) -> None:
    assert parse_location(outer).covers(parse_location(inner)) is covers


_segments = st.lists(st.text("ab%# ?=é", min_size=1, max_size=4), min_size=1, max_size=4)


@given(_segments, _segments)
def test_covering_is_by_whole_segments(one: list[str], other: list[str]) -> None:
    outer, inner = parse_location("s3://bucket/" + "/".join(one)), parse_location("s3://bucket/" + "/".join(other))
    assert outer.covers(inner) == (other[: len(one)] == one)
