"""Write the pages, and the parts of pages, that are made from code: ``nox -s docs``."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path

from delta_sharing_spark import errors
from delta_sharing_spark.options import options_page
from delta_sharing_spark.schema.features import features_page

HERE = Path(__file__).parent
#: A mark of the page of figures, and the block that follows it.
_FIGURES = re.compile(r"(?s)(<!-- figures: (\w+) -->\n)(?:```text\n.*?```\n)?")
_TREE = re.compile(r"(?s)(?<=```text\n).*?(?=```\n)")


def errors_page() -> str:
    """The page of errors as it stands, with the tree of ``errors.py`` drawn anew."""
    drawn = str(errors.__doc__).split("::\n\n", 1)[1].split("\n\n", 1)[0]
    page = (HERE / "errors.md").read_text(encoding="utf-8")
    return _TREE.sub(lambda _: textwrap.dedent(drawn).strip("\n") + "\n", page, count=1)


def benchmarks_page() -> str:
    """The page of figures as it stands, with what ``benchmarks/figures.py`` kept of each benchmark."""

    def kept(mark: re.Match[str]) -> str:
        file = HERE.parent / "benchmarks" / "figures" / f"{mark[2]}.txt"
        return mark[1] + (f"```text\n{file.read_text(encoding='utf-8')}```\n" if file.exists() else "")

    return _FIGURES.sub(kept, (HERE / "benchmarks.md").read_text(encoding="utf-8"))


PAGES = {
    "options.md": options_page,
    "features.md": features_page,
    "errors.md": errors_page,
    "benchmarks.md": benchmarks_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    runpy.run_path(str(HERE.parent / "benchmarks" / "draw.py"), run_name="__main__")


if __name__ == "__main__":
    main()
