"""How long the values of a request may be: the longest that is read, and one more."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from affinityd.cpuset import MAX_CPUS
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import MAX_LENGTH, parse_request
from affinityd.request.parsers import MAX_ENTRIES

#: Parameters that are lists, how so many entries are written, and beside what they stand.
LISTS = [
    pytest.param("gpus", lambda number: ",".join("0" * number), id="gpus"),
    pytest.param("job", lambda number: ",".join("0" * number), id="job"),
    pytest.param("granted", lambda number: ",".join("0" * number), id="granted"),
    pytest.param("visible", lambda number: ",".join("0" * number), id="visible"),
    pytest.param("nvidia_visible", lambda number: ",".join("0" * number), id="nvidia_visible"),
    pytest.param("cpu_bind", lambda number: ",".join("f" * number), id="cpu_bind"),
    pytest.param("rank", lambda number: ",".join(map(str, range(number))), id="rank"),
    pytest.param("rank", lambda number: f"0-{number - 1}", id="rank, as a range"),
    pytest.param("ranks", str, id="ranks"),
]


def pairs(name: str, text: str) -> list[tuple[str, str]]:
    """Return a parameter, with those that it needs."""
    return [(name, text), *([("ranks", "2"), ("rank", "0")] if name in {"job", "cpu_bind"} else [])]


@pytest.mark.parametrize(("name", "write"), LISTS)
def test_a_list_has_256_entries_at_most(name: str, write: Callable[[int], str]) -> None:
    parse_request(pairs(name, write(MAX_ENTRIES)))
    message = rf"\A{name}: 257 (entries|ranks) are too many; the most is 256\Z"
    with pytest.raises(InvalidRequestError, match=message):
        parse_request(pairs(name, write(MAX_ENTRIES + 1)))


@pytest.mark.parametrize("name", ["visible", "nvidia_visible", "gpu_bind"])
def test_what_drivers_and_slurm_write_is_bounded_by_its_letters(name: str) -> None:
    beside = [("ranks", "2"), ("rank", "0")] if name == "gpu_bind" else []
    parse_request([(name, "0" * MAX_LENGTH), *beside])
    message = rf"\A{name}: 32769 characters are too many; the most is 32768\Z"
    with pytest.raises(InvalidRequestError, match=message):
        parse_request([(name, "0" * (MAX_LENGTH + 1)), *beside])


def test_cpu_65535_is_read_and_no_higher_one() -> None:
    assert parse_request([("cpuset", "65535")]).cpuset == frozenset({MAX_CPUS - 1})
    whole = parse_request([("cpuset", "0-65535")]).cpuset
    assert whole is not None
    assert len(whole) == MAX_CPUS
    for text in ("65536", "0-65536", "0-4294967295", "4294967295"):
        with pytest.raises(InvalidRequestError, match="is too large; the largest is 65535"):
            parse_request([("cpuset", text)])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param("cpuset", "0-65535:65535", id="far apart"),
        pytest.param("cpuset", "0-65535:1/65535", id="one of so many"),
        pytest.param("cpuset", "0-65535:32768/65535", id="half of them"),
        pytest.param("cpuset", "0-65535", id="all of them"),
        pytest.param("cpuset", "0", id="the same one"),
        pytest.param("rank", "0-65535:65535", id="ranks far apart"),
        pytest.param("cpu_bind", "f" * 1000, id="masks"),
    ],
)
def test_the_longest_list_takes_no_longer_than_a_few_plans(name: str, part: str) -> None:
    """In CPU time, the quickest of three: it was 8 s where a stride was walked number by number."""
    text = ",".join([part] * (MAX_LENGTH // (len(part) + 1)))

    def seconds() -> float:
        began = time.process_time()
        try:
            parse_request(pairs(name, text))
        except InvalidRequestError as error:
            assert "too many" in str(error) or "more than" in str(error)  # noqa: PT017 - or none
        return time.process_time() - began

    assert min(seconds() for _ in range(3)) < 0.1
