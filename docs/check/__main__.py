"""Checks pages, docstrings, comments and messages: python -m docs.check; status 1: a fault."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from docs.check import commands, coverage
from docs.check.blocks import BLOCKS
from docs.check.comments import comments
from docs.check.messages import docstrings, messages
from docs.check.pages import (
    PAGES,
    ROOT,
    broken_links,
    malformed_rows,
    missing_files,
    prose,
    too_long,
)
from docs.check.words import long_sentences, nameless, wrong_words
from docs.site.__main__ import pages

CHANGELOG = ROOT / "CHANGELOG.md"


def faults() -> Iterator[str]:
    """Yield what is wrong, and where."""
    navigation = pages()
    for page in PAGES:
        place, text = page.relative_to(ROOT), prose(page)
        if str(place) not in navigation:
            yield f"{place}: it is not in the navigation of docs/site/mkdocs.yml"
        of_prose = (wrong_words(text), long_sentences(text), commands.unknown_options(text))
        values = commands.unknown_values(page.read_text())
        of_page = (broken_links(page), missing_files(page), too_long(page), malformed_rows(page))
        for found in (*of_page, *of_prose, values):
            yield from (f"{place}: {fault}" for fault in found)
    yield from (f"{CHANGELOG.name}: {fault}" for fault in wrong_words(prose(CHANGELOG)))
    for block in BLOCKS:
        yield from (f"{block}: {fault}" for fault in commands.faults(block))
    yield from coverage.faults()
    yield from coverage.unknown_symptoms()
    yield from coverage.undocumented()
    for where, text in messages():
        yield from (f"{where}: {fault}" for fault in wrong_words(text))
    for where, text in comments():
        yield from (f"{where}: {fault}" for fault in (*wrong_words(text), *nameless(text)))
    for path in sorted((ROOT / "affinityd").rglob("*.py")):
        for docstring in docstrings(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{docstring.lineno}"
            text = str(docstring.value)
            yield from (f"{where}: {fault}" for fault in (*wrong_words(text), *nameless(text)))


def main() -> int:
    """Print the faults."""
    found = list(faults())
    for fault in found:
        print(fault)
    print(f"{len(PAGES)} pages, their links, words, sentences and commands; {len(found)} faults")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
