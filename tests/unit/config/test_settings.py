"""The sources of settings, and the errors for wrong settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from affinityd.cli import main
from affinityd.config import read_file
from affinityd.config.settings import SETTING_NAMES, Settings, load
from affinityd.errors import InvalidRequestError
from tests.support.paths import REPOSITORY


@dataclass(frozen=True)
class Sources:
    """A settings file, and other sources of settings."""

    path: Path

    def load(
        self, flags: Mapping[str, str] = {}, env: Mapping[str, str] = {}, file: str = ""
    ) -> Settings:
        self.path.write_text(file)
        return load(
            flags, {**env, "AFFINITYD_CONFIG": str(self.path), "XDG_RUNTIME_DIR": "/run/me"}
        )

    def refusal(self, *given: Any) -> str:  # noqa: ANN401 - as load takes them
        with pytest.raises(InvalidRequestError) as caught:
            self.load(*given)
        return str(caught.value).replace(str(self.path), "CONF")


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path / "affinityd.conf")


def test_a_flag_overrides_a_variable_and_a_variable_the_file(sources: Sources) -> None:
    file = "AFFINITYD_LISTEN=10.0.0.3:3\nAFFINITYD_SOCKET=/file\nAFFINITYD_LOG_FORMAT=json\n"
    env = {"AFFINITYD_LISTEN": "10.0.0.2:2", "AFFINITYD_SOCKET": "/variable"}
    made = sources.load({"listen": "10.0.0.1:1"}, env, file)
    assert (made.listen, made.socket, made.log_format) == (("10.0.0.1", 1), "/variable", "json")


#: Names in the file for programs that start jobs, besides the daemon's settings.
OF_JOBS = {"mode", "nics", "scope", "drain"}


def test_every_line_of_the_example_is_a_setting_with_a_valid_value(sources: Sources) -> None:
    example = (REPOSITORY / "deploy/systemd/affinityd.conf").read_text()
    file = re.sub("^#(?=[A-Z])", "", example, flags=re.MULTILINE)
    loaded, default = sources.load(file=file), sources.load()
    assert loaded.nri_namespaces == {"training": {}, "serving": {}}
    for name in ("listen", "log_format", "scan_interval", "job_series"):
        assert getattr(loaded, name) == getattr(default, name)
    sources.load(file=file)
    names = {name.removeprefix("AFFINITYD_").lower() for name in read_file(str(sources.path))}
    assert names - {"affinityd"} == {*SETTING_NAMES, *OF_JOBS} - {"root", "machine"}


def test_a_machine_overrides_a_root_from_a_source_of_lower_precedence(sources: Sources) -> None:
    made = sources.load({"machine": "mi250x"}, {"AFFINITYD_ROOT": "/captured"})
    assert (made.root, made.machine) == ("/", "mi250x")
    made = sources.load({"root": "/x"}, {"AFFINITYD_MACHINE": "mi250x"})
    assert (made.root, made.machine) == ("/x", None)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("listen", "none", None),
        ("listen", "[::1]:80", ("::1", 80)),
        ("node_name", "n" * 253, "n" * 253),
        ("reserved_cpus", "0,64", frozenset({0, 64})),
        ("scan_interval", "3600", 3600),
        ("scan_interval", "off", None),
        ("job_series", "1000", 1000),
        ("admin_group", "root", 0),
        ("admin_group", "4000000000", 4000000000),
        (
            "nri_namespaces",
            " a, b mode=all nics=ucx+nccl,",
            {"a": {}, "b": {"mode": "all", "nics": "ucx+nccl"}},
        ),
    ],
)
def test_each_setting_is_read(sources: Sources, name: str, text: str, value: object) -> None:
    variable = {f"AFFINITYD_{name.upper()}": text}
    assert getattr(sources.load({name: text}), name) == value
    assert getattr(sources.load(env=variable), name) == value


def test_a_client_ignores_settings_of_the_daemon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AFFINITYD_NRI_MOUNT", "nonsense")
    assert main(["plan", "--machine", "ascend-910b", "--gpus", "0"]) == 0
    assert main(["serve", "--machine", "mi250x"]) == 2
    assert capsys.readouterr().err.startswith("affinityd serve: AFFINITYD_NRI_MOUNT: 'non")


ADDRESS = "is not HOST:PORT; write it like 127.0.0.1:9465, or none"
INTERVAL = "is not a whole number from 1 to 3600 seconds, or off"
JOBS = "is not a whole number from 0 to 1000 jobs"
NAME = "is not a node's name; give a line of 253 characters at most"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("root", "", "--root is empty; give it a value"),
        ("listen", "9465", f"--listen: '9465' {ADDRESS}"),
        ("listen_plan", "h:0065536", f"--listen-plan: 'h:0065536' {ADDRESS}"),
        ("node_name", "gpu\n07", f"--node-name: 'gpu\\n07' {NAME}"),
        ("reserved_cpus", "0-x", "--reserved-cpus: '0-x' is not a CPU number or range"),
        ("scan_interval", "0", f"--scan-interval: '0' {INTERVAL}"),
        ("job_series", "9" * 5000, f"--job-series: '{'9' * 60}…' {JOBS}"),
        ("admin_group", "no such", "--admin-group: there is no group 'no such' here"),
        ("log_format", "xml", "--log-format: 'xml' is not one of text, json"),
        ("nri_mount", "/run", "--nri-mount: '/run' is not one of on, off"),
    ],
)
def test_a_wrong_value_is_quoted(sources: Sources, name: str, text: str, line: str) -> None:
    assert sources.refusal({name: text}).startswith(line)


ROOT, MACHINE = "AFFINITYD_ROOT", "AFFINITYD_MACHINE"
WRONG = "AFFINITYD_LISTEN=x\n"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (({"root": "/", "machine": "x"},), "--root and --machine both name a machine; give one of"),
        (({}, {ROOT: "/", MACHINE: "x"}), f"{ROOT} and {MACHINE} both name a machine"),
        (({}, {}, f"{ROOT}=/\n{MACHINE}=x\n"), f"{ROOT} in CONF and {MACHINE} in CONF both name"),
        (({}, {}, WRONG), "AFFINITYD_LISTEN in CONF: 'x' is not"),
        (({"machine": "mi250x", "nri": "/s"},), "--nri needs this machine's containers, and"),
        (({"root": "/x"}, {"AFFINITYD_NRI": "/s"}), "AFFINITYD_NRI needs this machine's"),
        (({}, {"AFFINITYD_LISTEN": "y"}, WRONG), "AFFINITYD_LISTEN: 'y' is not"),
    ],
)
def test_an_error_names_the_source_of_the_value(
    sources: Sources, given: tuple[Any, ...], line: str
) -> None:
    assert sources.refusal(*given).startswith(line)
