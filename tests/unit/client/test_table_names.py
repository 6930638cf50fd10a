"""The three-part names that are found in a SQL text, and the text with data frames in their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.spark.table_names import TableReference, table_references, tokens_of, with_frames


def references(text: str, *, double_quoted_names: bool = False) -> list[TableReference]:
    return table_references(text, tokens_of(text, double_quoted_names=double_quoted_names))


def spliced(text: str) -> str:
    """The text with the n-th name as frame ``{n}``."""
    tokens = tokens_of(text)
    references = [r for r in table_references(text, tokens) if r.name[0] == "s"]
    return with_frames(text, tokens, references, [str(n) for n in range(len(references))])


NAMES: dict[str, list[str]] = {
    "SELECT * FROM s.d.t": ["s.d.t"],
    "SELECT a.b.c FROM s . d /* x */ . t, `s`.`d.e`.`t``u` JOIN S.D.T2 USING (id)": ["s.d.t", "s.d.e.t`u", "S.D.T2"],
    "TABLE s.d.t": ["s.d.t"],
    "FROM s.d.t |> WHERE x = 's.d.t'": ["s.d.t"],
    "SELECT 's.d.t', \"s.d.t\", r's.d.t' FROM s.d.a -- , s.d.b\n, s.d.c /* , s.d.e /* s.d.f */ , s.d.g */": ["s.d.a", "s.d.c"],
    "SELECT 'it''s FROM s.d.t', 'it\\'s FROM s.d.t' FROM s.d.u": ["s.d.u"],
    "SELECT s.d.t.id, s.d.t.* FROM s.d.t": ["s.d.t"],
    "SELECT s.d.f(1) FROM s.d.f(1), a.b, c, w.x.y.z": [],
    "SELECT * FROM IDENTIFIER('s.d.t') x, IDENTIFIER('a.b')": ["s.d.t"],
    "SELECT offset, `order` FROM s.d.t WHERE note = 'a' AND offset = 2 OR limit > 60": ["s.d.t"],
    "SELECT 1.5, a.b.c, 2e3 FROM 2024_share.d.t": ["a.b.c", "2024_share.d.t"],  # the server knows no a.b.c
    "SELECT {a} FROM größe.schöne.größe": ["größe.schöne.größe"],
    "SELECT 'open FROM s.d.t": ["s.d.t"],  # no query: Spark's parser has refused it
    "SELECT 1 /* open FROM s.d.t": [],
    "": [],
}  # fmt: skip


@pytest.mark.parametrize(("text", "names"), NAMES.items(), ids=list(NAMES))
def test_names(text: str, names: list[str]) -> None:
    assert [".".join(r.name) for r in references(text)] == names


def test_double_quotes_may_be_names() -> None:
    text = 'SELECT 1 FROM "s"."d"."t"'
    assert references(text) == []
    assert [r.name for r in references(text, double_quoted_names=True)] == [("s", "d", "t")]


SPLICED = {
    "SELECT id FROM s.d.t": "SELECT id FROM ({0} AS `t`)",
    "SELECT o.id FROM s.d.t AS o, s.d.t p": "SELECT o.id FROM ({0} AS `t`) AS o, ({1} AS `t`) p",
    "TABLE s.d.t": "TABLE {0}",
    "SELECT * FROM f(TABLE(s.d.t)), f(TABLE s.d.t)": "SELECT * FROM f(TABLE({0})), f(TABLE {1})",
    "SELECT s.d.t.id, d.t.id, t.id, D.T.* FROM s.d.t WHERE x": "SELECT `t`.id, `t`.id, t.id, `t`.* FROM ({0} AS `t`) WHERE x",
    "SELECT s.d.t.id, d.t.id FROM s.d.t x": "SELECT s.d.t.id, d.t.id FROM ({0} AS `t`) x",
    "SELECT '{x}' AS `{y}` FROM s.d.`{z}`": "SELECT '{{x}}' AS `{{y}}` FROM ({0} AS `{{z}}`)",
    "SELECT * FROM s.d.t VERSION AS OF 3 WHERE a": "SELECT * FROM ({0} AS `t`) WHERE a",
    "SELECT * FROM s.d.t FOR TIMESTAMP AS OF '2024-01-01' x": "SELECT * FROM ({0} AS `t`) x",
}


@pytest.mark.parametrize(("text", "expected"), SPLICED.items(), ids=list(SPLICED))
def test_frames_take_the_place_of_names(text: str, expected: str) -> None:
    assert spliced(text) == expected


def test_time_travel() -> None:
    text = "SELECT * FROM s.d.t VERSION AS OF 3, s.d.t FOR SYSTEM_TIME AS OF '2024-01-01', s.d.t TIMESTAMP AS OF DATE'2024-01-02'"
    assert [(r.version, r.timestamp) for r in references(text)] == [
        ("3", None),
        (None, "2024-01-01"),
        (None, "2024-01-02"),
    ]
    assert [r.version for r in references("SELECT version FROM s.d.t version")] == [None]


@pytest.mark.parametrize(
    "travel",
    ["TIMESTAMP AS OF current_date()", "TIMESTAMP AS OF '2024-01-01' - INTERVAL 1 DAY", "VERSION AS OF 3 + 1"],
)
def test_time_travel_by_other_than_a_value_is_refused(travel: str) -> None:
    with pytest.raises(PredicateError, match=r"s\.d\.t takes a number or a string"):
        references(f"SELECT * FROM s.d.t {travel}")


@given(st.text(alphabet="sdt. ,()'\"`\\{}-/*\nFROMJIN\x00\x01é1", max_size=80))
def test_no_text_breaks_it(text: str) -> None:
    tokens = tokens_of(text)
    assert tokens[-1].kind == "end"
    references = table_references(text, tokens)
    frames = {str(n): f"<{n}>" for n in range(len(references))}
    result = with_frames(text, tokens, references, list(frames))
    if not references:
        assert result.replace("{{", "{").replace("}}", "}") == text
