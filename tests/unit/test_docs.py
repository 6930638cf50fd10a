"""The documentation says what the code does: generated parts are current, names and links exist."""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark._version import page_address
from delta_sharing_spark.options.declared import OPTIONS

ROOT = Path(__file__).parents[2]
REPOSITORY = re.findall(r'(?m)^Repository = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[0]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def made() -> dict[str, Callable[[], str]]:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, Callable[[], str]] = module.PAGES
    return pages


@pytest.mark.parametrize("name", ["benchmarks.md", "benchmarks-in-full.md", "errors.md", "features.md", "options.md"])
def test_pages_made_from_code_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made()[name](), "run: nox -s docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_samples_exist(page: Path) -> None:
    known = {name.lower() for option in OPTIONS for name in (option.name, *option.aliases)}
    in_code = re.findall(r"\.option\([\"'](\w+)[\"']", page.read_text(encoding="utf-8"))
    assert {name.lower() for name in in_code} - {"checkpointlocation"} <= known


def test_pictures_are_current() -> None:
    """``python benchmarks/draw.py`` draws them, of figures that a benchmark kept."""
    drawn = runpy.run_path(str(ROOT / "benchmarks" / "draw.py"))["pictures"]()
    assert drawn == {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "figures").iterdir()}


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.name for page in PAGES} - {"README.md"}


def _addresses() -> Iterator[tuple[str, str]]:
    """The pages of the site that the package's source and its metadata name, each with the file that does."""
    site = page_address("").removesuffix(".html")
    for file in [
        *(ROOT / "delta_sharing_spark").rglob("*.py"),
        ROOT / "pyproject.toml",
        *(ROOT / ".github").rglob("*.yml"),
    ]:
        text = file.read_text(encoding="utf-8")
        yield from ((page_address(page), file.name) for page in re.findall(r"page_address\([\"'](\w+)[\"']\)", text))
        if file.name != "_version.py":
            yield from ((address, file.name) for address in re.findall(rf"{re.escape(site)}[\w./#-]*", text))


def test_the_default_engine_is_written_nowhere() -> None:
    """``register(spark)`` is the native lane, and ``engine="python"`` the way back: nobody needs another word."""
    texts = [*PAGES, *(ROOT / "examples").glob("*.*"), *(ROOT / "delta_sharing_spark").rglob("*.py")]
    written = re.compile(r"(?<!: str = )\bengine=[\"'\\]+auto")
    assert [file.name for file in texts if written.search(file.read_text(encoding="utf-8"))] == []


def test_addresses_in_errors_are_pages_of_the_site() -> None:
    """The site has a file ``page.html`` for each page, and no directories: ``use_directory_urls`` in mkdocs.yml."""
    assert "\nuse_directory_urls: false\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    site = page_address("").removesuffix(".html")
    pages = {"", *(f"{page.stem}.html" for page in PAGES if page.name != "README.md")}
    addresses = list(_addresses())
    assert page_address("options") in dict(addresses)
    assert {address: file for address, file in addresses if address.removeprefix(site) not in pages} == {}


def test_nobody_is_told_to_install_a_name_that_is_not_registered() -> None:
    """Until a release, whoever registers the name on an index decides what ``pip install delta-sharing-spark`` runs."""
    sources = [*(ROOT / "delta_sharing_spark").rglob("*.py"), *(ROOT / "examples").glob("*.*"), *PAGES]
    told = re.compile(
        r"(?:pip install|additional-python-modules)[^`\n]*[ \"'](?<!/)delta[-_]sharing[-_]spark(?![-_\w])"
    )
    texts = ((file.name, file.read_text(encoding="utf-8")) for file in sources if file.name != "CONTRIBUTING.md")
    assert [name for name, text in texts if told.search(text)] == []


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?m)(?:\]\(|^\[[\w-]+\]: )([^)\s]+)", page.read_text(encoding="utf-8")):
        # README's links are whole, for package indexes show it too.
        assert page.name != "README.md" or target.startswith("http"), target
        target = target.removeprefix(f"{REPOSITORY}/blob/main/")
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            headings = re.findall(r"(?m)^#+ (.*)$", file.read_text(encoding="utf-8"))
            assert anchor in map(_anchor, headings), target


def test_the_page_of_the_jvm_connector_tells_every_setting_of_the_jvm_connector() -> None:
    from delta_sharing_spark.spark.jvm_settings import JVM_SETTINGS

    page = (ROOT / "docs" / "jvm-connector.md").read_text(encoding="utf-8")

    def line(name: str, setting: Any) -> str:
        options = "`, `".join(setting.text.split(", "))
        here = f"option `{options}`" if setting.word == "option" else f"{setting.word}: {setting.text}"
        return f"| `{name}` | {f'`{setting.default}`' if setting.default else ''} | {here} |"

    assert [text for text in map(line, *zip(*JVM_SETTINGS.items(), strict=True)) if text not in page] == []


def test_every_promise_of_security_names_a_test_that_there_is() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    modules = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")}
    promises = [line for line in page.partition("## Five attackers")[2].splitlines() if line.startswith("| ")]
    promises = [line for line in promises if line != "| Promise | Test |"]
    assert len(promises) > 25
    named = {line: re.findall(r"`(test_\w+)::(test_\w+)`", line.split(" | ")[-1]) for line in promises}
    assert [line for line, tests in named.items() if not tests] == []
    of_all = {test for tests in named.values() for test in tests}
    assert [(module, test) for module, test in of_all if f"def {test}(" not in modules.get(module, "")] == []
