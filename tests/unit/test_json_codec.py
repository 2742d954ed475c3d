"""Documents: what is read equals what was written, and an unexpected part is named in one line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import pytest

from affinityd.cpuset import CpuSet
from affinityd.json_codec import MAX_JSON_NUMBER, CpuList, OneOf, decode, dumps, left_out, loads


@dataclass(frozen=True)
class Disk:
    """A part of a document."""

    name: str
    used: float = 0.0


@dataclass(frozen=True)
class Host:
    """A document with a field of every kind."""

    up: bool
    cores: int
    cpulist: CpuList
    rack: str | None
    state: Annotated[str, OneOf(("idle", "busy"))]
    disks: Sequence[Disk]
    distances: Mapping[int, int]
    cpus: CpuSet = frozenset()
    tags: tuple[str, ...] = ()
    limits: Mapping[str, int] | None = None
    notes: Sequence[str] | None = left_out()


CPUS = frozenset({1, 2, 3, 8})
HOST = Host(True, 2, "0-3", None, "idle", (Disk("a", 0.5), Disk("b")), {0: 10, 1: 20}, CPUS)  # noqa: FBT003
DISKS = [{"name": "a", "used": 0.5}, {"name": "b", "used": 0.0}]
IN_JSON: dict[str, object] = {
    "up": True,
    "cores": 2,
    "cpulist": "0-3",
    "rack": None,
    "state": "idle",
}
IN_JSON |= {"disks": DISKS, "distances": {"0": 10, "1": 20}}
IN_JSON |= {"cpus": "1-3,8", "tags": [], "limits": None}


def test_a_document_has_its_fields_in_order() -> None:
    assert json.loads(dumps(HOST)) == IN_JSON
    assert list(json.loads(dumps(HOST))) == list(IN_JSON)
    assert loads(Host, dumps(HOST), "host") == HOST


def test_an_optional_field_is_left_out_if_it_is_none() -> None:
    assert "notes" not in dumps(HOST)
    noted = loads(Host, json.dumps({**IN_JSON, "notes": []}), "host")
    assert (noted.notes, json.loads(dumps(noted))["notes"]) == ((), [])


def test_documents_of_other_releases_are_read() -> None:
    needed = {
        name: IN_JSON[name] for name in ("up", "cores", "cpulist", "state", "disks", "distances")
    }
    read = loads(Host, json.dumps({**needed, "color": "red"}), "host")
    assert (read.rack, read.limits, read.tags, read.cpus) == (None, None, (), frozenset())


WHOLE, RANGE = "not a whole number", f"not a number from 0 to {MAX_JSON_NUMBER}"
NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"up": 1}, ".up is 1, not true or false"),
        ({"cores": True}, f".cores is True, {WHOLE}"),
        ({"cores": 10**30}, f".cores is {10**30}, {RANGE}"),
        ({"rack": 3}, ".rack is 3, not a string"),
        ({"state": "x LD_PRELOAD=/a"}, ".state is 'x LD_PRELOAD=/a', not one of idle, busy"),
        ({"state": []}, ".state is [], not one of idle, busy"),
        ({"disks": {}}, ".disks is {}, not a list"),
        ({"disks": [{}]}, ".disks[0] has no 'name'"),
        ({"disks": [{"name": "a", "used": True}]}, ".disks[0].used is True, not a number"),
        ({"disks": [{"name": "a", "used": NAN}]}, f".disks[0].used is nan, {RANGE}"),
        ({"distances": {"1" * 5000: 2}}, f".distances: '{'1' * 60}…' is not a number"),
        ({"limits": {"a\nb": "x"}}, rf".limits['a\nb'] is 'x', {WHOLE}"),
        ({"tags": [None]}, ".tags[0] is None, not a string"),
        ({"cpulist": "0-x"}, ".cpulist: '0-x' is not a CPU number or range; write it like 0-3,8,"),
    ],
    ids=str,
)
def test_an_error_names_the_path_and_the_wrong_value(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the next line compares it all
        decode(Host, {**IN_JSON, **change}, "host")
    assert str(caught.value).removesuffix("10-11") == f"host{said}"


EMPTY = "not JSON: Expecting value: line 1 column 1 (char 0)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x" * 1000, f"is '{'x' * 39}, {EMPTY}"),
        *(("[]", "is [], not an object"), ("[" * 100_000, "is nested too deeply")),
        (b"\xff", r"is b'\xff', not JSON: "),
    ],
    ids=["no JSON", "a list", "too deep", "no UTF-8"],
)
def test_a_text_that_is_no_document_is_refused_in_one_line(text: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        loads(Host, text, "host")
    assert str(caught.value).startswith(f"host {said}")
