"""The fenced blocks of the pages, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import dedent

from docs.check.pages import PAGES, ROOT

FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"^\$ ", re.MULTILINE)
COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
BETWEEN = "();<>|&\n"  #: separators of simple commands of a shell


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str  #: its path from the root
    line: int
    kind: str  #: sh, console, yaml …
    text: str

    def __str__(self) -> str:
        """Say where it is."""
        return f"{self.page}:{self.line}"

    @property
    def examples(self) -> list[tuple[str, str]]:
        """The commands after a prompt, and what each prints."""
        lines = (example.partition("\n") for example in PROMPT.split(self.text)[1:])
        return [(command, printed) for command, _, printed in lines]

    @property
    def script(self) -> str:
        """What is typed: a whole block of `sh`; in other blocks the text after each prompt."""
        if self.kind == "sh":
            return self.text
        return "".join(f"{command}\n" for command, _ in self.examples)

    @property
    def commands(self) -> Iterator[list[str]]:
        """The words of each simple command, without redirections."""
        text = COMMENT.sub("", self.script.replace("\\\n", ""))
        lexer = shlex.shlex(text, posix=True, punctuation_chars=BETWEEN)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
        before = ""
        for ends, group in groupby(lexer, lambda token: not token.strip(BETWEEN)):
            words = list(group)
            if ends:
                before = words[-1]
            elif words[1:] or not before.endswith((">", "<")):
                yield words


def of_page(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text()
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, found[1], dedent(found[2]))


BLOCKS = [block for page in PAGES for block in of_page(page)]
