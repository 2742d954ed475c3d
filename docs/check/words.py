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
    **dict.fromkeys(("whatever", "wherever", "but for"), "any, each, without: plain word"),
    **dict.fromkeys(("is to be", "are to be"), "must, should"),
    **dict.fromkeys(("we", "us", "our", "ours"), "name the program"),
    "let alone": "leave alone",
    "who asks": "the caller",
    "who uses": "the processes of",
    "those whose": "a noun with its property",
    "pinning from outside": "enforcement",
}
WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
#: British spellings, in every form of a word.
BRITISH = re.compile(
    r"\b((?:behavi|col|fav|hon|neighb|lab)our\w*|judgement\w*|(?:cancel|label|relabel|model|signal)l"
    r"(?:ed|ing)|(?:initial|serial|normal|recogn|organ|optim|summar|priorit)is(?:e[sd]?|ing)|grey)\b"
)
#: A docstring or comment that begins with a clause in place of the thing it is about.
NAMELESS = re.compile(r"^(?:#:? )?(?:(?:Return|Yield|Take|Add|Say|Print) )?[Ww]hat\b")
TWICE = re.compile(r"\b([a-z]{2,}) \1\b")
MOST_WORDS = 30

#: The ends of sentences, and of items, rows and cells, which need no full stop.
BREAK = re.compile(r"\n\s*\n|\n(?= *(?:[-|#]|\d+\. ))|\||(?<=[.:;!?])\s+|(?<=[.:;!?]\*\*)\s+")
CODE = re.compile(r"`[^`]*`|\{[^}]*\}")


def wrong_words(text: str) -> Iterator[str]:
    """Yield the words of a text that are not used here, and those that are there twice."""
    plain = CODE.sub("`", text)
    for found in WORD.finditer(plain):
        yield f"{found[0]!r}: {WORDS[found[0].lower()]}"
    for found in BRITISH.finditer(plain):
        yield f"{found[0]!r}: American spelling"
    for twice in TWICE.finditer(plain):
        yield f"{twice[0]!r}: a word twice"


def nameless(text: str) -> Iterator[str]:
    """Yield the beginning of a docstring or comment that does not name its subject."""
    if NAMELESS.search(text):
        yield f"{text[:30]!r} …: name the thing itself"


def long_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page's prose that are too long to be read once."""
    for sentence in BREAK.split(LINK.sub(r"\1", text)):
        words = CODE.sub("code", sentence).split()
        if len(words) > MOST_WORDS:
            yield f"{len(words)} words are too many for a sentence: {' '.join(words[:12])} …"
