"""Checks the pages' links, files, tables and words: python -m docs.check; status 1: a fault."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from docs.check.pages import (
    PAGES,
    ROOT,
    broken_links,
    malformed_rows,
    missing_files,
    too_many_words,
)
from docs.site.__main__ import pages


def faults() -> Iterator[str]:
    """Yield each fault with its place."""
    navigation = pages()
    for page in PAGES:
        place = page.relative_to(ROOT)
        if str(place) not in navigation:
            yield f"{place}: it is not in the navigation of docs/site/mkdocs.yml"
        for check in (broken_links, missing_files, malformed_rows, too_many_words):
            for fault in check(page):
                yield f"{place}: {fault}"


def main() -> int:
    """Print the faults."""
    found = list(faults())
    for fault in found:
        print(fault)
    print(f"{len(PAGES)} pages, their links, files and tables; {len(found)} faults")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
