"""Features that 0.3 removed are refused, or warned of, in one line that says what to use."""

from pathlib import Path

import pytest

from affinityd.cli import COMMANDS, main
from affinityd.config import removed


@pytest.mark.parametrize(
    "command", [command for command in removed.REMOVED_COMMANDS if not command.startswith("exec ")]
)
def test_a_removed_command_or_option_is_refused_with_a_replacement(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *option = command.split()
    assert (name in COMMANDS) == bool(option)
    with pytest.raises(SystemExit) as ended:
        main([name, *option, "1"])
    line = f"affinityd {command} is removed: {removed.REMOVED_COMMANDS[command]}\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, line)


@pytest.mark.parametrize(
    ("environment", "in_file", "said"),
    [
        ("", "", []),
        ("off", "/a", ["AFFINITYD_MEASURED is removed, and ignored: leave it out"]),
        ("", "/a", ["AFFINITYD_MEASURED in {path} is removed, and ignored: leave it out"]),
    ],
)
def test_a_removed_variable_causes_a_warning_that_names_its_source(
    tmp_path: Path, environment: str, in_file: str, said: list[str]
) -> None:
    path = tmp_path / "affinityd.conf"
    path.write_text(f"AFFINITYD_MEASURED={in_file}\nAFFINITYD_MODE=node\n")
    environ = {"AFFINITYD_CONFIG": str(path), "AFFINITYD_MEASURED": environment}
    lines = [line.partition(";")[0] for line in removed.warnings(environ)]
    assert lines == [line.format(path=path) for line in said]
