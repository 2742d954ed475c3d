"""The parameters of a plan, and one clear line for each error."""

from collections.abc import Callable
from dataclasses import asdict

import pytest

from affinityd.cpuset import parse_list
from affinityd.errors import InvalidRequestError
from affinityd.planner.modes import MODES
from affinityd.request.environment import MAX_ENTRIES
from affinityd.request.parameters import (
    FORMATS,
    MAX_LENGTH,
    MAX_NUMBER,
    PARAMETERS,
    Request,
    parse_request,
)

NO_NUMBER = "{} is not a whole number from 1 to 2147483648"


def refused(*pairs: tuple[str, str]) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(pairs)
    return str(caught.value)


def test_every_default_is_the_contract_s() -> None:
    request = parse_request([])
    assert request == Request()
    assert " ".join(f"{name}={value}" for name, value in asdict(request.options).items()) == (
        "mode=node scope=node multithreading=all_logical balanced=True "
        "min_physical_cores=1 max_physical_cores=None share=auto strict=False cpus=None"
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("gpus", "all", None),
        ("gpus", " 0 , GPU-1 ", ("0", "GPU-1")),
        ("rank", "0-2", (0, 1, 2)),
        ("ranks", "256", 256),
        ("cpuset", "0-3,8", parse_list("0-3,8")),
        ("cpuset", "0-8:4", parse_list("0,4,8")),
        ("visible", "", ""),
        ("visible", " 0,x", " 0,x"),
        ("granted", "0, minor:3", "0,minor:3"),
        ("gpus", "GPU-1-2,0-2, 7", ("GPU-1-2", "0", "1", "2", "7")),
        *(("format", name, name) for name in FORMATS),
        *(("mode", f"single{dash}unique", "single_unique") for dash in "-_"),
        *(("share", name, name) for name in ("requested", "node", "auto")),
        ("min_physical_cores", "003", 3),
        ("max_physical_cores", f"{MAX_NUMBER}", MAX_NUMBER),
        *(("balanced", text, False) for text in ("false", "FALSE", "0", "no", "off")),
        *(("strict", text, True) for text in ("true", "True", "1", "yes", "on")),
    ],
)
def test_each_form_of_a_value_is_read(name: str, text: str, value: object) -> None:
    request = parse_request([(name, text)])
    (part,) = (it for it in (request, request.task, request.options) if hasattr(it, name))
    assert getattr(part, name) == value


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("gpus", "0,,1", "{} has an empty entry; write it like 0,1 or 0-3"),
        ("gpus", "3-0", "{} is not a range; write it like 0-3"),
        ("gpus", "0-9999", "10000 entries are too many; the most is 256"),
        ("rank", "1-0", "{} is not a rank; write it like 3, several like 0,1 or 0-3"),
        ("mode", "no-such", f"{{}} is not one of {', '.join(MODES)}"),
        ("scope", "Node", "{} is not one of node, socket"),
        ("share", "x", "{} is not one of auto, requested, node"),
        ("format", "xml", f"{{}} is not one of {', '.join(FORMATS)}"),
        *(("balanced", text, "{} is neither true nor false") for text in ("2", "tru", "true ")),
        *(("cpus", text, NO_NUMBER) for text in ("0", "00", "-1", "+1", "1.0", "1_0", "x", "٣")),
        ("cpus", f"{MAX_NUMBER + 1}", NO_NUMBER),
        ("nics", "ALL", "{} is neither all, none nor a whole number from 1"),
        ("cpuset", "0-x", "{} is not a CPU number or range; write it like 0-3,8,10-11"),
        ("ranks", "257", "{} is not a whole number from 1 to 256"),
        ("visible", "0\0", "{} is not text: it has a NUL or bytes that are no UTF-8"),
        ("visible", "0\udcff", "{} is not text: it has a NUL or bytes that are no UTF-8"),
    ],
)
def test_a_malformed_value_is_refused_with_one_line(name: str, text: str, problem: str) -> None:
    assert refused((name, text)) == f"{name}: {problem.format(repr(text))}"


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_empty_or_repeated_parameter_or_a_nul_is_refused(name: str) -> None:
    text = PARAMETERS[name].schema.get("enum", ["1"])[0]
    assert refused((name, text), (name, text)) == f"{name} is given twice; give it once"
    if name != "visible":
        for blank in "", " ", "\n", "\t \r", "\u00a0":
            assert refused((name, blank)) == f"{name} is empty; give it a value or leave it out"
        assert refused((name, "\0")).startswith(rf"{name}: '\x00' is not text: ")


def test_the_minimum_may_not_exceed_the_maximum() -> None:
    pairs = [("max_physical_cores", "2"), ("min_physical_cores", "2")]
    assert parse_request(pairs).options.min_physical_cores == 2
    assert refused(pairs[0], ("min_physical_cores", "3")) == (
        "min_physical_cores=3 is more than max_physical_cores=2; make it no more than that"
    )


# Texts of the greatest length that is read, and longer ones.


def read(name: str, text: str) -> Request:
    needs = [("ranks", "2"), ("rank", "0")] if name == "job" else []
    return parse_request([(name, text), *needs])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        *(
            (name, lambda number: ",".join("0" * number))
            for name in ("gpus", "job", "granted", "visible")
        ),
        ("rank", lambda number: ",".join(map(str, range(number)))),
        ("rank", lambda number: f"0-{number - 1}"),
    ],
)
def test_a_list_has_256_entries_at_most(name: str, write: Callable[[int], str]) -> None:
    read(name, write(MAX_ENTRIES))
    message = rf"\A{name}: 257 (entries|ranks) are too many; the most is 256\Z"
    with pytest.raises(InvalidRequestError, match=message):
        read(name, write(MAX_ENTRIES + 1))


def test_a_list_of_visible_devices_has_49152_characters_at_most() -> None:
    read("visible", "0" * MAX_LENGTH)
    message = r"\Avisible: 49153 characters are too many; the most is 49152\Z"
    with pytest.raises(InvalidRequestError, match=message):
        read("visible", "0" * (MAX_LENGTH + 1))
