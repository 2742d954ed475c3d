"""The words and sentences of pages, docstrings and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.check.pages import LINK

#: Words that are not used here → those that are.
WORDS = {
    **dict.fromkeys(("nobody", "somebody", "anybody", "everybody"), "name the user or program"),
    **dict.fromkeys(("whoever", "whom", "whomever"), "name the user or program"),
    **dict.fromkeys(("he", "him", "his", "himself"), "name the user or program"),
    **dict.fromkeys(("mend", "mends", "mended", "mending"), "fix, correct"),
    **dict.fromkeys(("shall", "thrice", "amiss", "upon", "anew", "hither", "whence"), "plain word"),
    "let alone": "leave alone",
    "who asks": "the caller",
    "pinning from outside": "enforcement",
    "behaviour": "behavior",
    "colour": "color",
    "neighbour": "neighbor",
    "initialise": "initialize",
    "initialised": "initialized",
    "labelled": "labeled",
    "cancelled": "canceled",
}
WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
TWICE = re.compile(r"\b([a-z]{2,}) \1\b")
MOST_WORDS = 30

#: The ends of sentences, and of items, rows and cells, which need no full stop.
BREAK = re.compile(r"\n\s*\n|\n(?= *(?:[-|#]|\d+\. ))|\||(?<=[.:;!?])\s+|(?<=[.:;!?]\*\*)\s+")
CODE = re.compile(r"`[^`]*`")


def wrong_words(text: str) -> Iterator[str]:
    """Yield the words of a text that are not used here, and those that are there twice."""
    plain = CODE.sub("`", text)
    for found in WORD.finditer(plain):
        yield f"{found[0]!r}: {WORDS[found[0].lower()]}"
    for twice in TWICE.finditer(plain):
        yield f"{twice[0]!r}: a word twice"


def long_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page's prose that are too long to be read once."""
    for sentence in BREAK.split(LINK.sub(r"\1", text)):
        words = CODE.sub("code", sentence).split()
        if len(words) > MOST_WORDS:
            yield f"{len(words)} words are too many for a sentence: {' '.join(words[:12])} …"
