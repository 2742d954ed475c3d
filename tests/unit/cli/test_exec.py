"""The command line of `affinityd exec`: options, errors and help."""

import re

import pytest

from affinityd.cli.commands.exec import EXEC_PARAMETERS, main, option_parser, split
from affinityd.client.ask_daemon import seconds
from affinityd.errors import InvalidRequestError
from affinityd.linux.memory_policy import POLICIES
from affinityd.request.parameters import PARAMETERS as PLAN_S


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--gpus 1 --cpuset=x", {"gpus": "1", "cpuset": "x", "threads": False}),
        ("--threads -v --fail-closed", {"threads": True, "verbose": True, "fail_closed": True}),
        ("--strict --choose-gpu", {"strict": "true", "choose": "gpu"}),
        ("--strict false --balanced", {"strict": "false", "balanced": "true"}),
    ],
)
def test_options_are_read(words: str, options: dict[str, object]) -> None:
    assert options.items() <= vars(option_parser().parse_args(words.split())).items()


@pytest.mark.parametrize("words", ["--mdoe node", "--fail", "-x", "--mode", "--threads true"])
def test_a_wrong_option_is_an_error_of_one_line(words: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^.+; see affinityd exec --help$") as caught:
        option_parser().parse_args(words.split())
    assert words.rsplit(maxsplit=1)[-1] in str(caught.value)


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        *(("-- a -- b", 0), ("a -- b", 0), ("--mode=node -- a", 1)),
        *(("", None), ("--", None), ("--mode node", None), ("--mode=node --", None)),
    ],
)
def test_the_command_follows_two_dashes_or_comes_first(words: str, ours: int | None) -> None:
    given = words.split()
    if ours is None:
        with pytest.raises(InvalidRequestError, match=r"missing.*; write affinityd exec -- CMD …$"):
            split(given)
    else:
        assert split(given) == (given[:ours], given[given.index("a") :])


@pytest.mark.parametrize("text", ["soon", "nan", "0", "-1", "3601", "inf", ""])
def test_a_timeout_is_a_number_of_seconds(text: str) -> None:
    assert (seconds(None), seconds("0.5")) == (1.0, 0.5)
    with pytest.raises(InvalidRequestError, match=r"^timeout: '.*' is not a number of seconds fro"):
        seconds(text)


def test_the_help_has_the_options_that_people_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(PLAN_S) - set(EXEC_PARAMETERS) == {"format", "nics", "observe", "whose"}
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "-v, --verbose" in printed
    assert f"--memory {'|'.join(POLICIES)}" in printed
    names = re.findall(r"^  (--[a-z-]+)", printed, re.MULTILINE)
    assert names[:5] == ["--gpus", "--choose-gpu", "--rank", "--mode", "--memory"]
    assert "--ranks" not in names  # launchers set this parameter
