"""How long the values of a request may be: the longest that is read, and one more."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from affinityd.cpuset import MAX_CPUS
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import MAX_LENGTH, Request, parse_request
from affinityd.request.parsers import MAX_ENTRIES


def read(name: str, text: str) -> Request:
    """Read a parameter, with those that it needs."""
    needs = [("ranks", "2"), ("rank", "0")] if name in {"job", "cpu_bind", "gpu_bind"} else []
    return parse_request([(name, text), *needs])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        *(
            (name, lambda number: ",".join("0" * number))
            for name in ("gpus", "job", "granted", "visible", "nvidia_visible", "cpu_bind")
        ),
        ("rank", lambda number: ",".join(map(str, range(number)))),
        ("rank", lambda number: f"0-{number - 1}"),
        ("ranks", str),
    ],
)
def test_a_list_has_256_entries_at_most(name: str, write: Callable[[int], str]) -> None:
    read(name, write(MAX_ENTRIES))
    message = rf"\A{name}: 257 (entries|ranks) are too many; the most is 256\Z"
    with pytest.raises(InvalidRequestError, match=message):
        read(name, write(MAX_ENTRIES + 1))


@pytest.mark.parametrize("name", ["visible", "nvidia_visible", "gpu_bind"])
def test_what_drivers_and_slurm_write_is_bounded_by_its_letters(name: str) -> None:
    read(name, "0" * MAX_LENGTH)
    message = rf"\A{name}: 32769 characters are too many; the most is 32768\Z"
    with pytest.raises(InvalidRequestError, match=message):
        read(name, "0" * (MAX_LENGTH + 1))


def test_cpu_65535_is_read_and_no_higher_one() -> None:
    assert read("cpuset", "0-65535").cpuset == frozenset(range(MAX_CPUS))
    for text in ("65536", "0-65536", "0-4294967295", "4294967295"):
        with pytest.raises(InvalidRequestError, match="is too large; the largest is 65535"):
            read("cpuset", text)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(
            ("cpuset", part)
            for part in ("0-65535:65535", "0-65535:1/65535", "0-65535:32768/65535", "0-65535", "0")
        ),
        ("rank", "0-65535:65535"),
        ("cpu_bind", "f" * 1000),
    ],
)
def test_the_longest_list_takes_no_longer_than_a_few_plans(name: str, part: str) -> None:
    """In CPU time, the quickest of three: it was 8 s where a stride was walked number by number."""
    text = ",".join([part] * (MAX_LENGTH // (len(part) + 1)))

    def seconds() -> float:
        began = time.process_time()
        try:
            read(name, text)
        except InvalidRequestError as error:
            assert "too many" in str(error) or "more than" in str(error)  # noqa: PT017 - or none
        return time.process_time() - began

    assert min(seconds() for _ in range(3)) < 0.1
