"""Inputs for parsers, and what must hold for every input."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

#: hypothesis does not make a slow input smaller: that takes longer than finding the input.
AS_FOUND = [Phase.explicit, Phase.reuse, Phase.generate]

#: With HYPOTHESIS_PROFILE=long the number of examples is multiplied by this factor.
TIMES = 5 if settings().max_examples > 100 else 1

#: The settings of fast tests, and of slow tests.
MANY = settings(max_examples=30 * TIMES)
SOME = settings(max_examples=10 * TIMES, phases=AS_FOUND, suppress_health_check=list(HealthCheck))

#: Seconds of CPU in which any input must be read; unbounded reading takes minutes.
SOON = 3.0

LONG = 100_000  #: characters

#: Characters that no grammar has: signs, odd blanks, control characters, digits beyond ASCII.
ODD = ("", " ", "\t", "\n", "\r", "\0", "\x85", "\u2028", "²", "٣", "_", "+", "-", "\x1b[2J", "😀")


def texts(*tokens: str) -> st.SearchStrategy[str]:
    words = st.sampled_from((*tokens, *ODD)) | st.text(max_size=5) | st.integers(0).map(str)
    return st.lists(words, max_size=12).map("".join) | _of(tokens, 0)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def long_texts(*tokens: str) -> st.SearchStrategy[str]:
    part = _of(tokens, 1, 3)
    body = part.map(lambda it: it * (LONG // max(1, len(it))))
    return st.tuples(part, body, part).map("".join)


def _of(tokens: Sequence[str], least: int, most: int | None = None) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(tokens), min_size=least, max_size=most).map("".join)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    place = st.integers(0, len(content) - 1)
    changed = st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=5)
    return (
        changed.map(lambda changes: _with(content, changes))
        | place.map(lambda end: content[:end])
        | place.map(lambda end: content[:end] + content)
    )


def _with(content: bytes, changes: Sequence[tuple[int, int]]) -> bytes:
    data = bytearray(content)
    for place, byte in changes:
        data[place] = byte
    return bytes(data)


#: Values that a field of JSON may have.
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, -1, 0, 1, 65536, 2**63, 10**4000, -(10**4000), 1.5, float("nan")),
        *("", "0", "0-3", "0-65535:65535", "x", "\n\x1b", "\ud800", "9" * 5000, [], {}),
        *([[]], ["x"] * 300, {"": ""}, {"²": 1}, {"1" * 5000: 1}, {"0": 10}, "x" * 5000),
    ]
)


@st.composite
def mutants(draw: st.DrawFn, document: object) -> str:
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from(["", "[" * LONG, '{"a":' * LONG, "1" * LONG, "NaN", '"\\ud800"', "{}"])
        )
    whole = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        whole = _mutated(draw, whole)
    return json.dumps(whole)


def _mutated(draw: st.DrawFn, value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    place = draw(st.sampled_from(places))
    inside = value[place]
    if isinstance(inside, dict | list) and inside and draw(st.integers(0, 5)):
        value[place] = _mutated(draw, inside)
    elif isinstance(value, dict) and draw(st.booleans()):
        del value[place]
    else:
        value[place] = deepcopy(draw(VALUES))
    return value


def read_or_refused(read: Callable[[], object], *refusals: type[Exception]) -> Exception | None:
    """Read an input: the reader must soon return, or raise an error of one line.

    Return the error if it is one of `refusals`; any other exception is a finding.
    """
    try:
        with soon():
            read()
    except refusals as refusal:
        text = str(refusal)
        assert text.isprintable(), text
        assert 0 < len(text) < 1000, text[:2000]
        return refusal
    return None


@contextmanager
def soon() -> Iterator[None]:
    """Interrupt code that takes longer than SOON; only in the main thread."""

    def ring(_number: int, _frame: object) -> None:
        raise AssertionError(f"not within {SOON} s of a CPU")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SOON)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
