"""Builds the site: python -m docs.site FOLDER.

Some pages are not in docs/: they lie where readers look for them in a checkout. All are copied with
their paths, so that links between them work in both places. A link to any other file of the
repository leads to that file on the web.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("mkdocs.yml")
PICTURES = ROOT / "docs/pictures"
LINK = re.compile(r"\]\((?!https://|#)([^)#\s]+)")


def pages() -> list[str]:
    """Return the pages of the navigation, as paths from the root."""
    sections = yaml.safe_load(CONFIG.read_text())["nav"]
    entries = [entry for section in sections for entry in section.values()]
    return [page for it in entries for page in ([it] if isinstance(it, str) else it)]


def copy(page: str, known: list[str], address: str, folder: Path) -> None:
    """Copy a page; links to other files than pages lead to the repository's address."""

    def target(link: re.Match[str]) -> str:
        path = os.path.relpath(ROOT / Path(page).parent / link[1], ROOT)
        if path in known or PICTURES in (ROOT / path).parents:
            return link[0]
        return f"]({address}/blob/main/{path}"

    to = folder / page
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(LINK.sub(target, (ROOT / page).read_text()))


def main() -> None:
    """Copy the pages, and have mkdocs build them; a broken link is an error."""
    folder = Path(sys.argv[1]).resolve()
    known = pages()
    address = yaml.safe_load(CONFIG.read_text())["extra"]["address"]
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for page in known:
        copy(page, known, address, folder / "pages")
    shutil.copytree(PICTURES, folder / "pages/docs/pictures")
    shutil.copy(CONFIG, folder)
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--clean"]
    subprocess.run([*mkdocs, "--config-file", folder / CONFIG.name], check=True)
    print(folder / "html/index.html")


if __name__ == "__main__":
    main()
