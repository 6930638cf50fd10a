"""Time travel and ranges of a feed: which versions are read, and one clear error where there are none, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given

from delta_sharing_spark.access.open import TableOpener, negotiated_table
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import DeltaSharingError, NotFoundError, OptionError, VersionError
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.options.values import option_text
from delta_sharing_spark.table import Scan, SharedTable
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.server.responses import bad_request
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases, drawn, one_of
from unit.changes.feed_tables import (
    FEED,
    NAME,
    T0,
    WAYS,
    created,
    ids,
    moment,
    rows,
    struct_of,
    table,
    text,
    texts,
    ways,
)

BOTH = ("url", "dir")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DeltaTableBuilder]:
    """``t`` has versions 0 to 3; the others are told by their names."""
    root = tmp_path_factory.mktemp("asked")
    feed = {"delta.enableChangeDataFeed": "true"}
    return {
        "t": table(root / "t", FEED).delete(ids(3)).append(rows(10, 3)),
        "mapped": table(root / "mapped", NAME).rename_column("n", "m").append([{"id": 50, "m": 1}]),
        "grown": table(root / "grown", FEED).add_column(text("more")).append([{"id": 50, "more": "x"}]),
        "empty": created(root / "empty", FEED),
        "never": table(root / "never", {}),
        "switched_on": table(root / "on", {}).set_properties(**feed).append(rows(20, 2)),
        "switched_off": table(root / "off", FEED).set_properties(**{"delta.enableChangeDataFeed": "false"}),
        "stamped": table(root / "stamped", FEED)
        .set_properties(**{"delta.enableInCommitTimestamps": "true"})
        .append(rows(20, 1)),
        "cleaned": table(root / "cleaned", FEED).append(rows(20, 2)).checkpoint().expire_log(2).append(rows(30, 1)),
    }


@pytest.fixture(scope="module")
def server(built: dict[str, DeltaTableBuilder]) -> Iterator[SharingServer]:
    with SharingServer() as running:
        for name, one in built.items():
            running.add_table(f"s.d.{name}", one.path, access_modes=BOTH)
        running.add_table("s.d.no_history", built["t"].path, history=False)
        running.add_table("s.d.no_history_by_url", built["t"].path, history=False, access_modes=BOTH)
        running.add_table("s.d.from_one", built["t"].path, start_version=1)
        running.add_table("s.d.only_dir", built["mapped"].path, access_modes=("dir",))
        yield running
        assert not running.failures


def scan(server: SharingServer, name: str, way: str, options: dict[str, Any]) -> Scan:
    shared = SharedTable(SharingClient(server.profile()), SharingClient(server.profile()).table(f"s.d.{name}").name)
    return Scan(shared, {**{key: option_text(value) for key, value in options.items()}, **WAYS[way]})


def feed(**between: Any) -> dict[str, Any]:
    return {"readChangeFeed": True, **between}


#: Options of a feed of ``t`` and the versions whose changes it tells; version 0 has none.
RANGES: list[tuple[dict[str, Any], list[int]]] = [
    ({"startingVersion": 0}, [1, 2, 3]),
    ({"startingVersion": 2, "endingVersion": 2}, [2]),
    ({"startingVersion": 2, "endingVersion": 99}, [2, 3]),
    ({"startingVersion": 4}, []),
    ({"startingVersion": 4, "endingVersion": 9}, []),
    ({"startingTimestamp": moment(-9000)}, [1, 2, 3]),
    ({"startingTimestamp": moment(1)}, [1, 2, 3]),
    ({"startingTimestamp": moment(1.000001)}, [2, 3]),
    ({"startingTimestamp": moment(1.5), "endingTimestamp": moment(2.9)}, [2]),
    ({"startingTimestamp": moment(1.5), "endingTimestamp": moment(9000)}, [2, 3]),
    ({"startingTimestamp": moment(2), "endingTimestamp": moment(2)}, [2]),
    ({"startingTimestamp": moment(1.2), "endingTimestamp": moment(1.8)}, []),
    ({"startingTimestamp": moment(2.5), "endingVersion": 3}, [3]),
    ({"startingVersion": 2, "endingTimestamp": moment(2.5)}, [2]),
    ({"startingTimestamp": str((T0 + 2000) // 1000)}, [2, 3]),
    ({"startingTimestamp": "2023-11-14 22:13:22", "timeZone": "UTC"}, [2, 3]),
    ({"startingTimestamp": "2023-11-14 23:13:22", "timeZone": "Europe/Berlin"}, [2, 3]),
    ({"startingTimestamp": "2023-11-14T17:13:22-05:00", "timeZone": "Europe/Berlin"}, [2, 3]),
    ({"startingTimestamp": "2023-11-14", "timeZone": "UTC"}, [1, 2, 3]),
]


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict server"])
@pytest.mark.parametrize(("between", "versions"), RANGES, ids=str)
def test_ranges(
    server: SharingServer,
    built: dict[str, DeltaTableBuilder],
    monkeypatch: pytest.MonkeyPatch,
    between: dict[str, Any],
    versions: list[int],
    strict: bool,
) -> None:
    """Also of a server that refuses an end after its newest version."""
    monkeypatch.setattr(server.settings, "end_after_newest", not strict)
    expected = built["t"].expected_changes()
    expected_texts = texts(expected.filter(pc.is_in(expected["_commit_version"], value_set=pc.cast(versions, "int64"))))
    ways = ["url-delta"] if strict else [*WAYS]
    feeds = {way: scan(server, "t", way, feed(**between)).to_arrow() for way in ways}
    found = {way: (texts(rows), struct_of(rows.schema)) for way, rows in feeds.items()}
    assert found == dict.fromkeys(ways, (expected_texts, struct_of(expected.schema)))


def versions_asked_for(random: Random) -> dict[str, Any]:
    """Options of a feed, or of a version or moment of the past."""

    def at(prefix: str) -> dict[str, Any]:
        by_version, by_moment = {f"{prefix}Version": random.randint(0, 6)}, moment(random.randint(-8, 28) / 4)
        return random.choice([by_version, {f"{prefix}Timestamp": by_moment}])

    as_of = random.choice(
        [{"versionAsOf": random.randint(0, 6)}, {"timestampAsOf": moment(random.randint(-8, 28) / 4)}]
    )
    between = feed(**at("starting"), **random.choice([{}, at("ending"), at("ending")]))
    return random.choice([between, as_of])


@cases(40, suppress_health_check=list(HealthCheck))
@given(drawn(one_of("t", "mapped", "cleaned", "stamped"), versions_asked_for, one_of(False, True), one_of(False, True)))
def test_both_modes_read_the_same_or_refuse_alike(
    server: SharingServer, case: tuple[str, dict[str, Any], bool, bool]
) -> None:
    name, options, strict, old = case

    def outcome(way: str) -> Any:
        try:
            feed_rows = scan(server, name, way, options).to_arrow()
        except DeltaSharingError as error:
            return type(error)
        return texts(feed_rows), struct_of(feed_rows.schema)

    server.settings.end_after_newest, server.settings.metadata_at_version = not strict, not old
    try:
        assert outcome("url-delta") == outcome("dir")
    finally:
        server.settings.end_after_newest = server.settings.metadata_at_version = True


@pytest.mark.parametrize("refuses", [False, True], ids=["ignored", "refused"])
def test_a_server_that_does_not_know_moments_gives_no_later_changes(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """It ignores the end, or refuses moments here and where it is asked for the version of one."""
    own = TableQueries._changes

    def refuse(*_: Any) -> Any:
        raise bad_request("unknown parameter")

    def changes(self: TableQueries, request: Any) -> Any:
        if request.parameters.pop("endingTimestamp", None) is not None and refuses:
            refuse()
        return own(self, request)

    monkeypatch.setattr(TableQueries, "_changes", changes)
    if refuses:
        monkeypatch.setattr(TableQueries, "version", refuse)
    feed_of = partial(scan, server, "t", "url-delta")
    with pytest.raises(VersionError, match=r"until 2023-.* server answers with later changes; give endingVersion"):
        feed_of(feed(startingVersion=1, endingTimestamp=moment(2.5))).to_arrow()
    read = feed_of(feed(startingVersion=1, endingTimestamp=moment(3))).to_arrow()
    assert set(read["_commit_version"].to_pylist()) == {1, 2, 3}


@pytest.mark.parametrize("ignored", ["startingVersion", "endingVersion"])
@pytest.mark.parametrize("way", ["url-parquet", "url-delta"])
def test_changes_outside_the_range_are_left_out(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch, way: str, ignored: str
) -> None:
    """Of a server that ignores an end of the range."""
    own = TableQueries._changes

    def changes(self: TableQueries, request: Any) -> Any:
        request.parameters[ignored] = {"startingVersion": "0", "endingVersion": "3"}[ignored]
        return own(self, request)

    monkeypatch.setattr(TableQueries, "_changes", changes)
    read = scan(server, "t", way, feed(startingVersion=2, endingVersion=2)).to_arrow()
    assert set(read["_commit_version"].to_pylist()) == {2}


def test_the_old_name_of_the_option(server: SharingServer) -> None:
    feed_rows = scan(server, "t", "dir", {"readChangeData": "true", "startingVersion": 3}).to_arrow()
    assert feed_rows["_commit_version"].to_pylist() == [3, 3, 3]


#: What is asked of which table, the kind of error, and words of it in url and in dir mode (one text where both say the same).
REFUSED: list[tuple[str, dict[str, Any], type[DeltaSharingError], str | tuple[str, str]]] = [
    ("t", feed(), OptionError, "No startingVersion or startingTimestamp provided for CDF read"),
    ("t", feed(startingVersion="latest"), OptionError, "'latest' is for streams"),
    ("t", feed(startingVersion=-1), OptionError, "must be greater than or equal to zero"),
    ("t", feed(startingVersion=2, endingVersion=1), OptionError, "startingVersion 2 is greater than endingVersion 1"),
    ("t", feed(startingVersion=1, startingTimestamp=moment(1)), OptionError, "either provide 'startingVersion' or"),
    ("t", feed(startingTimestamp=moment(2), endingTimestamp=moment(1)), OptionError, "a range that goes forward"),
    ("t", feed(startingVersion=1, versionAsOf=1), OptionError, "reads a range of versions"),
    (
        "t",
        feed(startingVersion=5),
        VersionError,
        "version 5 of s.d.t does not exist: the newest is 3; start at 4 or before",
    ),
    (
        "t",
        feed(startingVersion=3, endingTimestamp=moment(1.5)),
        VersionError,
        "s.d.t would start at version 3 and end at version 1; give an end that is not before the start",
    ),
    (
        "t",
        feed(startingVersion=2, endingTimestamp=moment(1.5)),
        VersionError,
        "s.d.t would start at version 2 and end at version 1",
    ),
    (
        "t",
        feed(startingTimestamp=moment(2.5), endingVersion=1),
        VersionError,
        "s.d.t would start at version 3 and end at version 1",
    ),
    ("mapped", feed(startingVersion=2, endingTimestamp=moment(1)), VersionError, "version 2 and end at version 1"),
    (
        "mapped",
        feed(startingVersion=0, endingTimestamp=moment(-1)),
        VersionError,
        "before the earliest version of s.d.m",
    ),
    ("t", feed(startingTimestamp=moment(9000)), VersionError, "after the newest version of s.d.t: version 3 of 2023-"),
    (
        "t",
        feed(startingVersion=0, endingTimestamp=moment(-9000)),
        VersionError,
        "is before the earliest version of s.d.t that is available: version 0 of 2023-",
    ),
    (
        "cleaned",
        feed(startingTimestamp=moment(0.2), endingTimestamp=moment(0.8)),
        VersionError,
        "is before the earliest version of s.d.cleaned that is available: version 2",
    ),
    (
        "never",
        feed(startingVersion=0),
        VersionError,
        (
            "cdf is not enabled on table s.d.never; .*record and share",
            "no change data was recorded for version 0 of s.d.never",
        ),
    ),
    (
        "switched_on",
        feed(startingVersion=0),
        VersionError,
        ("change data was not recorded for version", "no change data was recorded for version 0 of s.d.switched_on"),
    ),
    (
        "switched_off",
        feed(startingVersion=1),
        VersionError,
        ("cdf is not enabled on table", "no change data was recorded for version 2 of s.d.switched_off"),
    ),
    (
        "cleaned",
        feed(startingVersion=0),
        VersionError,
        (
            "version 0 of s.d.cleaned is no longer in its log.*version 2 or later",
            "version 0 of s.d.cleaned is no longer in its log, whose commits begin with version 2: ",
        ),
    ),
    (
        "t",
        {"versionAsOf": 1, "timestampAsOf": moment(1)},
        OptionError,
        "either provide 'versionAsOf' or 'timestampAsOf'",
    ),
    ("t", {"versionAsOf": -1}, OptionError, "must be an integer greater than or equal to zero"),
    (
        "t",
        {"versionAsOf": 99},
        VersionError,
        "version 99 of s.d.t does not exist: the newest is 3; ask for a version up to 3",
    ),
    ("cleaned", {"versionAsOf": 0}, VersionError, "version 0 of s.d.cleaned is no longer in its log"),
    ("t", {"timestampAsOf": moment(-9000)}, VersionError, "before the earliest version of s.d.t"),
    ("t", {"timestampAsOf": moment(9000)}, VersionError, "after the newest version of s.d.t"),
]


@pytest.mark.parametrize(
    ("way", "name", "options", "kind", "words"),
    [(way, *case) for case in REFUSED for way in WAYS if (way, case[0]) != ("url-parquet", "mapped")],
    ids=str,
)
def test_versions_that_are_not_there(
    server: SharingServer,
    way: str,
    name: str,
    options: dict[str, Any],
    kind: type[DeltaSharingError],
    words: str | tuple[str, str],
) -> None:
    match = words if isinstance(words, str) else words[way == "dir"]
    with pytest.raises(kind, match=match) as refused:
        scan(server, name, way, options).to_arrow()
    assert type(refused.value) is kind
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "no_history",
            {"versionAsOf": 1},
            "version 1 of s.d.no_history cannot be read: .*history sharing is not enabled",
        ),
        (
            "no_history",
            {"timestampAsOf": moment(1)},
            "as of 2023-11-14T22:13:21Z cannot be read: .*share the table's hist",
        ),
        ("no_history", feed(startingVersion=1), "from version 1 to the newest version cannot be read: .*not enabled"),
        ("from_one", {"versionAsOf": 0}, r"only query table data since version 1; ask .*\(the newest is 3\)"),
        ("from_one", feed(startingVersion=0), "only query table data since version 1; choose a range"),
    ],
)
@pytest.mark.parametrize("old", [False, True], ids=["", "old server"])
@pytest.mark.parametrize("way", ["url-parquet", "url-delta"])
def test_versions_that_are_not_shared(
    server: SharingServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    words: str,
    old: bool,
    way: str,
) -> None:
    monkeypatch.setattr(server.settings, "metadata_at_version", not old)
    with pytest.raises(VersionError, match=words):
        scan(server, name, way, options).to_arrow()


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_starts_at_a_moment_or_says_why_not(server: SharingServer, way: str) -> None:
    def start(name: str, seconds: float) -> int:
        options = {"path": f"s.d.{name}", "startingTimestamp": option_text(moment(seconds)), **WAYS[way]}
        parsed = parse_options(options, is_stream=True)
        opener = TableOpener(negotiated_table(parsed, SharingClient(server.profile()).profile))
        assert parsed.starting_timestamp is not None
        return opener.table().version_at_or_after(parsed.starting_timestamp)

    assert start("t", 1.001) == 2
    with pytest.raises(VersionError, match=r"is after the newest version of s.d.t: version 3 of 2023-"):
        start("t", 9000)
    if way != "dir":
        with pytest.raises(
            VersionError, match=r"s.d.no_history cannot start at 2023\S+: .*history sharing is not enabled"
        ):
            start("no_history", 1)


def test_the_log_has_the_history_that_url_mode_does_not_share(
    server: SharingServer, built: dict[str, DeltaTableBuilder]
) -> None:
    """The credentials of directory mode cover it; ``auto`` takes the way that has the version."""
    name, asked = "no_history_by_url", {"versionAsOf": 1}
    with pytest.raises(VersionError, match="history sharing is not enabled"):
        scan(server, name, "url-delta", asked).to_arrow()
    server.reset_metrics()
    assert texts(scan(server, name, "dir", asked).to_arrow()) == texts(built["t"].expected(1))
    assert server.count("tables") == 0, "the newest metadata tells what the table's location is"
    by_itself = SharingClient(server.profile()).table(f"s.d.{name}").scan(version=1)
    assert by_itself.resolved().decision.mode == "dir"
    assert texts(by_itself.to_arrow()) == texts(built["t"].expected(1))


@pytest.mark.parametrize(("kind", "options"), [("changes", feed(startingVersion=1)), ("metadata", {"versionAsOf": 1})])
@pytest.mark.parametrize(("body", "words"), [("", "answers 404 without a word"), ("None.", "says: None; ")])
def test_versions_that_are_not_found(
    server: SharingServer, kind: str, options: dict[str, Any], body: str, words: str
) -> None:
    """The table is: it is not the names that are wrong."""
    fault = server.faults.add(kind, status=404, body=body)
    try:
        with pytest.raises(VersionError, match=f"s.d.t.*cannot be read: the sharing server {words}"):
            scan(server, "t", "url-delta", options).to_arrow()
    finally:
        server.faults.remove(fault)
    with pytest.raises(NotFoundError, match="check the names"):
        scan(server, "none", "url-delta", {"versionAsOf": 1}).to_arrow()


@pytest.mark.parametrize("old", [False, True], ids=["", "old server"])
@pytest.mark.parametrize("name", ["t", "grown", "mapped", "only_dir"])
def test_time_travel(
    server: SharingServer,
    built: dict[str, DeltaTableBuilder],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    old: bool,
) -> None:
    """Also from a server whose metadata is always the newest."""
    monkeypatch.setattr(server.settings, "metadata_at_version", not old)
    one = built["mapped" if name == "only_dir" else name]
    asked = [
        (v, options) for v in range(one.version + 1) for options in ({"versionAsOf": v}, {"timestampAsOf": moment(v)})
    ]
    asked += [(version, {"timestampAsOf": moment(version + 0.999)}) for version in range(one.version)]
    expected = [(options, texts(one.expected(v)), struct_of(one.expected(v).schema)) for v, options in asked]
    for way in ["dir"] if name == "only_dir" else ways(one):
        tables = [scan(server, name, way, options).to_arrow() for _, options in asked]
        found = [
            (options, texts(rows), struct_of(rows.schema)) for (_, options), rows in zip(asked, tables, strict=True)
        ]
        assert found == expected, way


@pytest.mark.parametrize("old", [False, True], ids=["", "old server"])
@pytest.mark.parametrize("end", [{"endingVersion": 1}, {"endingTimestamp": moment(1.5)}])
@pytest.mark.parametrize("way", ["url-delta", "dir"])
def test_a_mapped_feed_has_the_names_of_its_end(
    server: SharingServer, monkeypatch: pytest.MonkeyPatch, way: str, end: dict[str, Any], old: bool
) -> None:
    """As Delta Lake, which reads other tables' feeds in their newest schema."""
    monkeypatch.setattr(server.settings, "metadata_at_version", not old)
    mapped = scan(server, "mapped", way, feed(startingVersion=0, **end))
    assert "n" in mapped.schema.names
    assert "m" not in mapped.schema.names
    assert mapped.to_arrow()["n"].null_count == 2
    assert "more" in scan(server, "grown", way, feed(startingVersion=0, **end)).schema.names


@pytest.mark.parametrize("way", WAYS)
def test_a_table_without_commits_after_the_first(server: SharingServer, way: str) -> None:
    assert scan(server, "empty", way, feed(startingVersion=0)).to_arrow().num_rows == 0
    assert scan(server, "empty", way, feed(startingVersion=1)).to_arrow().num_rows == 0
    assert scan(server, "empty", way, {"versionAsOf": 0}).count() == 0


@pytest.mark.parametrize(
    ("way", "name", "listed"),
    [
        ("url-delta", "t", [0, 1, 2, 3]),
        ("url-delta", "from_one", [1, 2, 3]),
        ("url-delta", "cleaned", [2, 3]),
        ("dir", "t", [0, 1, 2, 3]),
        ("dir", "cleaned", [2, 3]),
    ],
)
def test_versions_are_those_that_can_be_listed(server: SharingServer, way: str, name: str, listed: list[int]) -> None:
    """Fewer than are asked for: from the first one that the server shares, or whose commit is there."""
    table = SharingClient(server.profile(), **WAYS[way]).table(f"s.d.{name}")
    listings = {most: table.versions(most) for most in (20, 3, 2, 1)}
    numbers = {most: [version.version for version in versions] for most, versions in listings.items()}
    assert numbers == {most: listed[-most:] for most in listings}
    assert all(v.committed is None or v.committed >= moment(0) for versions in listings.values() for v in versions)
    with pytest.raises(VersionError, match="share the table's history"):
        SharingClient(server.profile(), accessMode="url").table("s.d.no_history").versions()
