"""Checks pages, docstrings and messages: python -m docs.check. The status is 1 if one is wrong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from docs.check.messages import docstrings, messages
from docs.check.pages import PAGES, ROOT, broken_links, prose, too_long
from docs.check.words import long_sentences, wrong_words


def faults() -> Iterator[str]:
    """Yield what is wrong, and where."""
    for page in PAGES:
        place, text = page.relative_to(ROOT), prose(page)
        for found in (broken_links(page), too_long(page), wrong_words(text), long_sentences(text)):
            yield from (f"{place}: {fault}" for fault in found)
    for where, text in messages():
        yield from (f"{where}: {fault}" for fault in wrong_words(text))
    for path in sorted((ROOT / "affinityd").rglob("*.py")):
        for docstring in docstrings(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{docstring.lineno}"
            yield from (f"{where}: {fault}" for fault in wrong_words(str(docstring.value)))


def main() -> int:
    """Print the faults."""
    found = list(faults())
    for fault in found:
        print(fault)
    print(f"{len(PAGES)} pages, their links, words and sentences; {len(found)} faults")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
