"""The parameters of a plan, and one clear line for each that is wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.cpuset import parse_list
from affinityd.errors import InvalidRequestError
from affinityd.planner.model import Options
from affinityd.planner.modes import MODES
from affinityd.request.parameters import FORMATS, MAX_LENGTH, PARAMETERS, Request, parse_request
from affinityd.request.parsers import MAX_ENTRIES, MAX_NUMBER
from tests.support.asking import is_one_short_line


def test_every_default_is_the_contract_s() -> None:
    assert parse_request([]) == Request(
        gpus=None,
        rank=None,
        cpuset=None,
        visible=None,
        granted=None,
        format=None,
        options=Options(
            mode="unique_contiguous",
            scope="node",
            multithreading="all_logical",
            balanced=True,
            min_physical_cores=1,
            max_physical_cores=None,
            share="auto",
            strict=False,
        ),
    )


def test_these_are_the_parameters() -> None:
    assert sorted(PARAMETERS) == sorted(
        [
            *("gpus", "rank", "ranks", "job", "mode", "scope", "multithreading", "balanced"),
            *("min_physical_cores", "max_physical_cores", "cpuset", "visible", "granted"),
            *("nvidia_visible", "observe", "whose", "cpus", "task_cpus"),
            *("share", "strict", "format", "gpu_bind", "cpu_bind", "step_gpus", "job_cpus"),
        ]
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        pytest.param("gpus", "all", None, id="all alone is every visible GPU"),
        pytest.param("gpus", "1,0,1", ("1", "0", "1"), id="entries keep order and repeats"),
        pytest.param("gpus", " 0 , GPU-1 ", ("0", "GPU-1"), id="blanks around entries are nothing"),
        pytest.param("rank", "2,0", (0, 2), id="ranks are a list"),
        pytest.param("rank", "0-2", (0, 1, 2), id="or a range"),
        pytest.param("ranks", "256", 256, id="so many ranks"),
        pytest.param("job", "0, GPU-1", ("0", "GPU-1"), id="a job's devices"),
        pytest.param("cpuset", "0-3,8", parse_list("0-3,8"), id="a cpulist"),
        pytest.param("cpuset", "0-8:4", parse_list("0,4,8"), id="a cpulist with a stride"),
        pytest.param("observe", "0-3", parse_list("0-3"), id="CPUs that are kept"),
        pytest.param("visible", "", "", id="no visible device at all"),
        pytest.param("visible", " 0,x", " 0,x", id="a visible list is kept to the letter"),
        pytest.param("granted", "0, minor:3", "0,minor:3", id="granted devices"),
        pytest.param("granted", "none", "none", id="no granted device"),
        *(pytest.param("format", name, name, id=f"format {name}") for name in FORMATS),
    ],
)
def test_a_value_is_read(name: str, text: str, value: object) -> None:
    assert getattr(parse_request([(name, text)]), name) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        pytest.param("mode", "unique_interleaved", "unique_interleaved", id="a mode"),
        pytest.param("mode", "unique-interleaved", "unique_interleaved", id="a mode with a dash"),
        pytest.param("scope", "socket", "socket", id="a scope"),
        pytest.param("multithreading", "single_logical", "single_logical", id="multithreading"),
        pytest.param("share", "requested", "requested", id="share requested"),
        pytest.param("share", "node", "node", id="share node"),
        pytest.param("share", "auto", "auto", id="share auto"),
        pytest.param("min_physical_cores", "3", 3, id="a minimum"),
        pytest.param("min_physical_cores", "003", 3, id="a minimum with zeros before it"),
        pytest.param("max_physical_cores", "3", 3, id="a maximum"),
        pytest.param("max_physical_cores", str(MAX_NUMBER), MAX_NUMBER, id="the greatest maximum"),
        *(
            pytest.param(name, text, value, id=f"{name}={text}")
            for name in ("balanced", "strict")
            for value, texts in ((True, "true True 1 yes on"), (False, "false FALSE 0 no off"))
            for text in texts.split()
        ),
    ],
)
def test_an_option_is_read(name: str, text: str, value: object) -> None:
    assert getattr(parse_request([(name, text)]).options, name) == value


MALFORMED = [
    pytest.param("gpus", "0,,1", "gpus: '0,,1' has an empty entry; write it like 0,1", id="a gap"),
    pytest.param("gpus", "0,", "gpus: '0,' has an empty entry; write it like 0,1", id="a comma"),
    pytest.param(
        "gpus", "all,0", "gpus: 'all,0': all stands alone, not in a list", id="all and more"
    ),
    pytest.param(
        "gpus",
        ",".join("0" * (MAX_ENTRIES + 1)),
        "gpus: 257 entries are too many; the most is 256",
        id="more ranks than a node can have",
    ),
    *(
        pytest.param(
            "rank",
            text,
            f"rank: {text!r} is not a list of ranks; write it like 0,1 or 0-3",
            id=name,
        )
        for text, name in [
            ("x", "a rank that is a word"),
            ("-1", "a negative rank"),
            ("0,,1", "a gap in ranks"),
            ("1-0", "a backward range of ranks"),
            ("65536", "a rank beyond all"),
        ]
    ),
    pytest.param(
        "mode",
        "no-such",
        f"mode: 'no-such' is not one of {', '.join(MODES)}",
        id="an unknown mode",
    ),
    pytest.param(
        "scope", "Node", "scope: 'Node' is not one of node, socket", id="a scope in capitals"
    ),
    pytest.param("scope", " node", "scope: ' node' is not one of node, socket", id="a blank"),
    pytest.param(
        "multithreading",
        "all",
        "multithreading: 'all' is not one of all_logical, single_logical",
        id="unknown multithreading",
    ),
    pytest.param(
        "share", "x", "share: 'x' is not one of auto, requested, node", id="unknown share"
    ),
    pytest.param(
        "format",
        "xml",
        "format: 'xml' is not one of json, cpulist, mask, numactl, shell, lines",
        id="unknown format",
    ),
    *(
        pytest.param(name, text, f"{name}: {text!r} is neither true nor false", id=f"{name}={text}")
        for name in ("balanced", "strict")
        for text in ("2", "maybe", "tru", "true ", "١")
    ),
    *(
        pytest.param(
            name,
            text,
            f"{name}: {text!r} is not a whole number from 1 to 2147483648",
            id=f"{name}={text}",
        )
        for name in ("min_physical_cores", "max_physical_cores")
        for text in (
            "0",
            "00",
            "-1",
            "+1",
            "1.0",
            "1e3",
            "0x1",
            "1_0",
            "x",
            " 1",
            "٣",
            "2147483649",
        )
    ),
    pytest.param(
        "cpuset",
        "0-x",
        "cpuset: '0-x' is not a CPU number or range; write it like 0-3,8,10-11",
        id="a cpuset that is no list",
    ),
    pytest.param(
        "cpuset",
        "0-99999",
        "cpuset: CPU number in '0-99999' is too large; the largest is 65535",
        id="too large",
    ),
    pytest.param(
        "granted",
        "0,,1",
        "granted: '0,,1' has an empty entry; write it like 0,1",
        id="granted: a gap",
    ),
    pytest.param(
        "visible",
        "CUDA_VISIBLE_DEVICES=0,1",
        "visible: 'CUDA_VISIBLE_DEVICES=0,1' names its variable; give the value alone: '0,1'",
        id="a variable with its name",
    ),
    pytest.param(
        "visible",
        "0\0",
        r"visible: '0\x00' is not text: it has a NUL or what is no UTF-8",
        id="a NUL",
    ),
    pytest.param(
        "visible",
        "0\udcff",
        r"visible: '0\udcff' is not text: it has a NUL or what is no UTF-8",
        id="a byte that is no UTF-8",
    ),
    pytest.param(
        "visible",
        "0" * (MAX_LENGTH + 1),
        "visible: 32769 characters are too many; the most is 32768",
        id="a value that is too long",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), MALFORMED)
def test_a_malformed_value_is_refused_with_one_line(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"\A{re.escape(message)}\Z"):
        parse_request([(name, text)])


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "visible"])
@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r", "\u00a0"], ids=repr)
def test_an_empty_value_is_refused(name: str, text: str) -> None:
    message = f"{name} is empty; give it a value or leave it out"
    with pytest.raises(InvalidRequestError, match=rf"\A{message}\Z"):
        parse_request([(name, text)])


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_repeated_parameter_is_refused(name: str) -> None:
    text = PARAMETERS[name].schema.get("enum", ["1"])[0]
    with pytest.raises(InvalidRequestError, match=rf"\A{name} is given twice; give it once\Z"):
        parse_request([(name, text), (name, text)])


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "visible"])
def test_a_nul_alone_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"\A{name}: '\\x00' is not text: "):
        parse_request([(name, "\0")])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("gpu", "unknown parameter 'gpu'; did you mean gpus?", id="nearly a name"),
        pytest.param("Mode", "unknown parameter 'Mode'; did you mean mode?", id="in capitals"),
        pytest.param(
            "min-physical-cores",
            "unknown parameter 'min-physical-cores'; did you mean min_physical_cores?",
            id="with the command line's dashes",
        ),
        pytest.param(
            "zzz",
            "unknown parameter 'zzz'; known are gpus, rank, ranks, job, gpu_bind, cpu_bind, "
            "step_gpus, job_cpus, task_cpus, mode, scope, multithreading, balanced, "
            "min_physical_cores, max_physical_cores, cpus, cpuset, whose, visible, "
            "granted, nvidia_visible, observe, share, strict, format",
            id="like none",
        ),
        pytest.param(
            "", "unknown parameter ''; known are gpus, rank, ranks, job, gpu_bind", id="nothing"
        ),
        pytest.param("gpus\n", r"unknown parameter 'gpus\n'; did you mean gpus?", id="a newline"),
        pytest.param("q" * 5000, f"unknown parameter '{'q' * 60}…'; known are ", id="5000 letters"),
    ],
)
def test_an_unknown_parameter_is_refused_with_what_was_meant(name: str, shown: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request([(name, "1")])
    assert str(caught.value).startswith(shown)


def test_the_first_wrong_parameter_is_the_one_that_is_told() -> None:
    with pytest.raises(InvalidRequestError, match=r"\Ascope: "):
        parse_request([("mode", "node"), ("scope", "x"), ("share", "y")])


@pytest.mark.parametrize(("least", "most", "fits"), [(2, 2, True), (2, 3, True), (3, 2, False)])
def test_the_minimum_is_no_more_than_the_maximum(least: int, most: int, fits: bool) -> None:
    pairs = [("max_physical_cores", str(most)), ("min_physical_cores", str(least))]
    if fits:
        assert parse_request(pairs).options.min_physical_cores == least
    else:
        message = (
            r"\Amin_physical_cores=3 is more than max_physical_cores=2; make it no more than that\Z"
        )
        with pytest.raises(InvalidRequestError, match=message):
            parse_request(pairs)


def test_equal_requests_are_one_key_of_a_cache() -> None:
    one = parse_request([("gpus", "0, 1"), ("cpuset", "0-3"), ("mode", "unique-interleaved")])
    other = parse_request([("mode", "unique_interleaved"), ("cpuset", "3,0-2"), ("gpus", "0,1")])
    assert one == other
    assert hash(one) == hash(other)


names = st.sampled_from(list(PARAMETERS)) | st.text(max_size=8)
texts = st.text(max_size=12) | st.text("0123456789,-:/ \n\0", max_size=12)


@given(st.lists(st.tuples(names, texts), max_size=4))
def test_whatever_is_asked_is_understood_or_refused_with_one_line(
    pairs: list[tuple[str, str]],
) -> None:
    request = _request_or_error(pairs)
    if isinstance(request, InvalidRequestError):
        assert is_one_short_line(request)
    else:
        assert hash(request) == hash(parse_request(pairs))


def _request_or_error(pairs: list[tuple[str, str]]) -> Request | InvalidRequestError:
    try:
        return parse_request(pairs)
    except InvalidRequestError as error:
        return error
