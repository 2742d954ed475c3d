"""The pages of the documentation, and the checks of their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *(it for it in sorted(ROOT.glob("[!.]*/README.md")) if it.parent.name != "mutants"),
    *sorted(ROOT.glob("deploy/**/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

#: The most words of a page, as `wc -w` counts them; reference tables may have more.
MOST_WORDS = 1300
REFERENCES = ("api.md", "exec.md", "metrics.md", "settings.md")

BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:affinityd|bench|deploy|docs|examples|scripts|slurm|tests)/[\w./*-]+)`")
TEST = re.compile(r"`(test_\w+)`")
CODE = re.compile(r"`[^`]*`")


def prose(page: Path) -> str:
    """Return a page without its blocks of code, line by line where it was."""
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())


def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (LINK.sub(r"\1", heading).replace("`", "").lower() for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


def broken_links(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere in this repository."""
    for _, target in LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            yield f"{target} does not exist"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield f"{target}: that page has no such heading"


def missing_files(page: Path) -> Iterator[str]:
    """Yield the files of the repository, and the tests, that a page names and that do not exist."""
    for name in FILE.findall(prose(page)):
        if not [*ROOT.glob(name.replace("NAME", "*"))]:
            yield f"{name} does not exist"
    for name in TEST.findall(prose(page)):
        if not any(f"def {name}(" in path.read_text() for path in ROOT.glob("tests/**/*.py")):
            yield f"there is no {name}"


def too_many_words(page: Path) -> Iterator[str]:
    """Yield the number of a page's words if it is too large."""
    words = len(page.read_text().split())
    if words > MOST_WORDS and page.name not in REFERENCES:
        yield f"{words} words: a page has one reader and one task, in {MOST_WORDS} words"


def malformed_rows(page: Path) -> Iterator[str]:
    """Yield the rows of a page's tables that have other numbers of cells than their headers."""
    cells = 0  #: the number of cells in the table's header; 0: outside of a table
    for line in prose(page).splitlines():
        row = CODE.sub("", line.strip()).replace("\\|", "")
        if not row.startswith("|"):
            cells = 0
            continue
        cells = cells or row.count("|")
        number = row.count("|")
        if number != cells or not row.endswith("|"):
            yield f"a row of {number - 1} cells in a table of {cells - 1}: {line.strip()[:60]}"
