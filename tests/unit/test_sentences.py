"""Pages, docstrings and comments are plain: no sentence has over 30 words, and participles are no names."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = sorted((ROOT / "delta_sharing_spark").rglob("*.py"))
MOST_WORDS = 30

#: What is no prose of a page: code, comments of HTML, tables, headings, directives of mkdocstrings, HTML, addresses of links.
_NO_PROSE = re.compile(
    r"(?ms)^ *```.*?^ *```$|<!--.*?-->|^ *\|[^\n]*$|^#[^\n]*$|^::: [^\n]*(?:\n    [^\n]*)*|^ *</?[a-z][^\n]*$|^\[[\w-]+\]: [^\n]*$"
)
_ENTRY = r"(?:[-*+]|[0-9]+[.)]) "
#: What begins a paragraph: an empty line, an entry of a list, a heading of a docstring, an argument or an attribute.
_OF_A_PAGE = re.compile(rf"\n[ >]*\n|\n(?=[ >]*{_ENTRY})")
_OF_A_DOCSTRING = re.compile(rf"\n *\n|\n(?= *(?:{_ENTRY}|[\w*`.,/ ()\[\]|]{{1,60}}:(?: |\n)|>>> ))")
#: What is no prose of a docstring: sessions of Python, and literal blocks.
_LITERAL = re.compile(r"(?m)^ *(?:>>>|\.\.\.) .*$|::\n(?:\n| +[^\n]*(?:\n|\Z))+")
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
#: Names in a row are one thing to read.
_NAMES = re.compile(r"code(?:,? (?:and |or )?code\b)+")
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"[.!?][\"')*_]*(?=\s|$)")


def long_sentences(text: str, breaks: re.Pattern[str]) -> Iterator[str]:
    """The sentences of a text that have too many words; code counts as one word, and so do names in a row."""
    for paragraph in breaks.split(text):
        plain = " ".join(_LINK.sub(r"\1", _PICTURE.sub("", _CODE.sub("code", paragraph))).split())
        plain = _NAMES.sub("code", plain)
        for sentence in _END.split(plain):
            words = re.findall(r"\S*\w\S*", sentence)
            if len(words) > MOST_WORDS:
                yield f"{len(words)}: {' '.join(words)}"


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield _LITERAL.sub("", text)


def comments(source: str) -> Iterator[str]:
    """The comments of a module; those that have lines to themselves, one after the other, are one."""
    block: list[str] = []
    before = 0  # the line of a comment that had it to itself
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        is_alone = not token.line[: token.start[1]].strip()
        if token.start[0] != before + 1 or not is_alone:
            yield "\n".join(block)
            block = []
        block.append(token.string.lstrip("#: "))
        before = token.start[0] if is_alone else 0
    yield "\n".join(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_of_pages_are_short(page: Path) -> None:
    prose = _NO_PROSE.sub("\n", page.read_text(encoding="utf-8"))
    assert list(long_sentences(prose, _OF_A_PAGE)) == []


@pytest.mark.parametrize("folder", sorted({m.relative_to(ROOT).parts[1] for m in MODULES}))
def test_sentences_of_docstrings_and_comments_are_short(folder: str) -> None:
    long = []
    for module in MODULES:
        if module.relative_to(ROOT).parts[1] == folder:
            source = module.read_text(encoding="utf-8")
            for text in (*docstrings(source), *comments(source)):
                long += [f"{module.name} {sentence}" for sentence in long_sentences(text, _OF_A_DOCSTRING)]
    assert long == []


#: What is no name: a participle says what was done to something, and not what it is.
_PARTICIPLES = {"told", "known", "left", "shown", "kept", "given", "said", "found"}
#: HTTP's own word, and fields that users see.
_NAMES_OF_OLD = {"not_found", "known_features", "known_version", "kept_bytes"}
#: What folders still have, and may only have fewer of: files as Spark is shown them.
_BOUNDS = {"native": 14, "parquet": 2}


def _participles(tree: ast.AST) -> Iterator[str]:
    """The names that a tree binds and that hold a participle; ``left`` beside ``right`` is a side."""
    for node in ast.walk(tree):
        names: tuple[str, ...]
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                names = (name,)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names = (name,)
            case _:
                names = ()
        yield from (n for n in names if _PARTICIPLES & set(n.split("_")) and n not in _NAMES_OF_OLD)


@pytest.mark.parametrize("folder", sorted({m.relative_to(ROOT).parts[1] for m in MODULES}))
def test_participles_are_no_names(folder: str) -> None:
    names = []
    for module in MODULES:
        if module.relative_to(ROOT).parts[1] == folder:
            tree = ast.parse(module.read_text(encoding="utf-8"))
            has_sides = any(isinstance(node, ast.Name) and node.id == "right" for node in ast.walk(tree))
            names += [(module.name, n) for n in _participles(tree) if not (n == "left" and has_sides)]
    assert len(names) <= _BOUNDS.get(folder, 0), names
