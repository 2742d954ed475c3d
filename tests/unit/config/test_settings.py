"""Where settings come from, and what is said of a wrong one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.cli.parser import Parser, add_settings
from affinityd.config.file import default_socket
from affinityd.config.settings import ENFORCE_VALUES, NAMES, SETTINGS, Settings, load
from affinityd.cpuset import parse_list
from affinityd.enforce.policy.file import FILE
from affinityd.errors import InvalidRequestError


def settings(tmp_path: Path, *, flags: dict[str, str], env: dict[str, str], file: str) -> Settings:
    path = tmp_path / "affinityd.conf"
    path.write_text(file)
    return load(flags, {**env, "AFFINITYD_CONFIG": os.fspath(path), "XDG_RUNTIME_DIR": "/run/me"})


def test_a_flag_counts_before_a_variable_and_that_before_the_file(tmp_path: Path) -> None:
    file = "AFFINITYD_LISTEN=10.0.0.3:3\nAFFINITYD_SOCKET=/file\nAFFINITYD_LOG_FORMAT=json\n"
    env = {"AFFINITYD_LISTEN": "10.0.0.2:2", "AFFINITYD_SOCKET": "/variable"}
    made = settings(tmp_path, flags={"listen": "10.0.0.1:1"}, env=env, file=file)
    assert (made.listen, made.socket, made.log_format) == (("10.0.0.1", 1), "/variable", "json")


def test_without_any_the_defaults_hold(tmp_path: Path) -> None:
    made = settings(tmp_path, flags={}, env={}, file="")
    assert (made.root, made.machine, made.listen) == ("/", None, ("127.0.0.1", 9465))
    assert (made.listen_plan, made.node_name) == (None, None)
    assert (made.reserved_cpus, made.log_format) == (frozenset(), "text")
    assert (made.scan_interval, made.job_series, made.admin_group) == (15, 0, None)
    assert (made.enforce, made.enforce_policy, made.migrate_memory) == ("off", None, False)


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert load({}, {"AFFINITYD_CONFIG": os.fspath(tmp_path / "none")}).root == "/"


@pytest.mark.parametrize(
    ("line", "cpus"),
    [
        ("AFFINITYD_RESERVED_CPUS=0,64", "0,64"),
        ('AFFINITYD_RESERVED_CPUS="0,64"', "0,64"),
        ("  AFFINITYD_RESERVED_CPUS='0-1'  ", "0-1"),
        ("# AFFINITYD_RESERVED_CPUS=5", ""),
        ("; AFFINITYD_RESERVED_CPUS=5", ""),
        ("\n\nAFFINITYD_RESERVED_CPUS=", ""),
        ("PATH=/bin\nAFFINITYD_RESERVED_CPUS=3", "3"),
        ("\ufeffAFFINITYD_RESERVED_CPUS=48", "48"),
        ("# a form feed\fAFFINITYD_RESERVED_CPUS=5", ""),
        ("AFFINITYD_RESERVED_CPUS=48,\\\n49", "48-49"),
    ],
    ids=[
        *("plain", "double quotes", "single quotes", "#", ";", "empty is not set", "others'"),
        *("a byte order mark", "a comment ends at its line's end"),
        "a line goes on after a backslash",
    ],
)
def test_the_file_is_a_systemd_environment_file(tmp_path: Path, line: str, cpus: str) -> None:
    assert settings(tmp_path, flags={}, env={}, file=line).reserved_cpus == parse_list(cpus)


def test_a_machine_by_flag_sets_a_root_by_variable_aside(tmp_path: Path) -> None:
    env = {"AFFINITYD_ROOT": "/captured"}
    made = settings(tmp_path, flags={"machine": "mi250x"}, env=env, file="")
    assert (made.root, made.machine) == ("/", "mi250x")
    other = settings(tmp_path, flags={"root": "/x"}, env={"AFFINITYD_MACHINE": "mi250x"}, file="")
    assert (other.root, other.machine) == ("/x", None)


@pytest.mark.parametrize(
    ("text", "address"),
    [("none", None), ("[::1]:80", ("::1", 80)), ("node7:9465", ("node7", 9465)), ("a:0", ("a", 0))],
)
def test_a_tcp_address(tmp_path: Path, text: str, address: tuple[str, int] | None) -> None:
    made = settings(tmp_path, flags={"listen": text, "listen_plan": text}, env={}, file="")
    assert (made.listen, made.listen_plan) == (address, address)


def test_a_nodes_name_is_a_line_of_a_dns_names_length(tmp_path: Path) -> None:
    for name in ("gpu07.example.org", "n" * 253):
        env = {"AFFINITYD_NODE_NAME": name}
        assert settings(tmp_path, flags={}, env=env, file="").node_name == name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("scan_interval", "1", 1),
        ("scan_interval", "3600", 3600),
        ("scan_interval", "off", None),
        ("job_series", "0", 0),
        ("job_series", "1000", 1000),
        ("admin_group", "root", 0),
        ("admin_group", "4000000000", 4000000000),
    ],
)
def test_what_the_audit_is_told(tmp_path: Path, name: str, text: str, value: int | None) -> None:
    made = settings(tmp_path, flags={name: text}, env={}, file="")
    assert getattr(made, name) == value


@pytest.mark.parametrize("way", ENFORCE_VALUES)
def test_how_jobs_are_pinned_from_outside(tmp_path: Path, way: str) -> None:
    file = f"AFFINITYD_ENFORCE={way}\nAFFINITYD_MIGRATE_MEMORY=on\n"
    made = settings(tmp_path, flags={"enforce_policy": "/x.toml"}, env={}, file=file)
    assert (made.enforce, made.enforce_policy, made.migrate_memory) == (way, "/x.toml", True)


@pytest.mark.parametrize("way", ["observe", "pin"])
@pytest.mark.parametrize(
    ("flags", "env", "told"),
    [
        ({"machine": "mi250x"}, {}, "--machine replays another machine"),
        ({"root": "/captured"}, {}, "--root replays another machine"),
        ({}, {"AFFINITYD_ROOT": "/x"}, "AFFINITYD_ROOT replays another machine"),
        ({"scan_interval": "off"}, {}, "--scan-interval has nobody look at processes"),
        ({}, {"AFFINITYD_SCAN_INTERVAL": "off"}, "AFFINITYD_SCAN_INTERVAL has nobody look at"),
    ],
    ids=["a shipped machine", "a captured one", "by variable", "no scans", "no scans by variable"],
)
def test_where_no_processes_are_looked_at_none_can_be_pinned(
    tmp_path: Path, way: str, flags: dict[str, str], env: dict[str, str], told: str
) -> None:
    begin = f"--enforce: '{way}' takes this machine's processes, and {told}"
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(begin)}"):
        settings(tmp_path, flags={**flags, "enforce": way}, env=env, file="")
    off = settings(tmp_path, flags={**flags, "enforce": "off"}, env=env, file="")
    assert off.enforce == "off"


def test_a_client_does_not_mind_what_is_for_the_daemon_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AFFINITYD_ENFORCE", "pin")
    monkeypatch.setenv("AFFINITYD_MIGRATE_MEMORY", "nonsense")
    assert main(["plan", "--machine", "mi250x", "--gpus", "0"]) == 0
    assert main(["serve", "--machine", "mi250x"]) == 2
    assert capsys.readouterr().err.startswith("affinityd serve: AFFINITYD_MIGRATE_MEMORY: 'non")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], None),
        (["--migrate-memory"], "on"),
        (["--migrate-memory", "off"], "off"),
        (["--migrate-memory", "--enforce", "pin"], "on"),
    ],
)
def test_a_switch_may_stand_by_itself(words: list[str], value: str | None) -> None:
    parser = Parser()
    add_settings(parser, NAMES)
    assert parser.parse_args(words).migrate_memory == value


def test_help_names_the_file_that_counts_where_none_is_named() -> None:
    assert FILE in SETTINGS["enforce_policy"].help


INTERVALS = "is not a whole number from 1 to 3600 seconds, or off"
JOBS = "is not a whole number from 0 to 1000 jobs"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "listen",
            "9465",
            "--listen: '9465' is not HOST:PORT; write it like 127.0.0.1:9465, or none",
        ),
        ("listen", "host:x", "--listen: 'host:x' is not HOST:PORT"),
        ("listen", "host:65536", "--listen: 'host:65536' is not HOST:PORT"),
        ("listen", ":80", "--listen: ':80' is not HOST:PORT"),
        ("listen_plan", "9466", "--listen-plan: '9466' is not HOST:PORT"),
        ("node_name", "gpu\n07", "--node-name: 'gpu\\n07' is no node's name; give a line of 253"),
        ("node_name", "gpu\x1b[31m", "--node-name: 'gpu\\x1b[31m' is no node's name"),
        ("node_name", "n" * 254, f"--node-name: '{'n' * 60}…' is no node's name"),
        ("reserved_cpus", "0-", "--reserved-cpus: '0-' is not a CPU number or range"),
        ("scan_interval", "0", f"--scan-interval: '0' {INTERVALS}"),
        ("scan_interval", "3601", f"--scan-interval: '3601' {INTERVALS}"),
        ("scan_interval", "2.5", f"--scan-interval: '2.5' {INTERVALS}"),
        ("scan_interval", "-1", f"--scan-interval: '-1' {INTERVALS}"),
        ("scan_interval", "none", f"--scan-interval: 'none' {INTERVALS}"),
        ("scan_interval", "²", f"--scan-interval: '²' {INTERVALS}"),
        ("job_series", "1001", f"--job-series: '1001' {JOBS}"),
        ("job_series", "9" * 5000, f"--job-series: '{'9' * 60}…' {JOBS}"),
        (
            "admin_group",
            "no such group",
            "--admin-group: there is no group 'no such group' here; give a group's name or number",
        ),
        ("admin_group", "4294967295", "--admin-group: there is no group '4294967295' here"),
        ("admin_group", "a\0b", "--admin-group: there is no group 'a\\x00b' here"),
        ("admin_group", "\udcff", "--admin-group: there is no group '\\udcff' here"),
        ("enforce", "on", "--enforce: 'on' is none of off, observe, pin"),
        ("migrate_memory", "yes", "--migrate-memory: 'yes' is neither on nor off"),
        ("log_format", "xml", "--log-format: 'xml' is neither text nor json"),
    ],
)
def test_a_wrong_value_is_quoted_with_what_would_be_right(
    tmp_path: Path, name: str, text: str, line: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        settings(tmp_path, flags={name: text}, env={}, file="")
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("A=1\nnonsense\n", ":2: 'nonsense' is not written as NAME=value"),
        ("export AFFINITYD_ROOT=/\n", ":1: 'export AFFINITYD_ROOT' is not written as NAME=value"),
        ("AFFINITYD_SOCKET='/open\n", ":1: 'AFFINITYD_SOCKET': No closing quotation"),
    ],
)
def test_a_wrong_line_of_the_file_is_named(tmp_path: Path, file: str, line: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        settings(tmp_path, flags={}, env={}, file=file)
    assert str(caught.value).endswith(line)


@pytest.mark.parametrize(
    ("flags", "env", "file", "names"),
    [
        ({"root": "/", "machine": "mi250x"}, {}, "", "--root and --machine"),
        (
            {},
            {"AFFINITYD_ROOT": "/", "AFFINITYD_MACHINE": "mi250x"},
            "",
            "AFFINITYD_ROOT and AFFINITYD_MACHINE",
        ),
        (
            {},
            {},
            "AFFINITYD_ROOT=/\nAFFINITYD_MACHINE=mi250x\n",
            "AFFINITYD_ROOT in CONF and AFFINITYD_MACHINE in CONF",
        ),
    ],
    ids=["flags", "variables", "the file"],
)
def test_both_kinds_of_machine_in_one_place_are_refused(
    tmp_path: Path, flags: dict[str, str], env: dict[str, str], file: str, names: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        settings(tmp_path, flags=flags, env=env, file=file)
    told = str(caught.value).replace(str(tmp_path / "affinityd.conf"), "CONF")
    assert told == f"{names} both name a machine; give one of them"


def test_a_wrong_value_is_told_with_the_place_that_it_stands_in(tmp_path: Path) -> None:
    path = tmp_path / "affinityd.conf"
    with pytest.raises(
        InvalidRequestError, match=rf"^AFFINITYD_LISTEN in {re.escape(str(path))}: 'x' is not"
    ):
        settings(tmp_path, flags={}, env={}, file="AFFINITYD_LISTEN=x\n")
    with pytest.raises(InvalidRequestError, match=r"^AFFINITYD_LISTEN: 'y' is not"):
        settings(tmp_path, flags={}, env={"AFFINITYD_LISTEN": "y"}, file="AFFINITYD_LISTEN=x\n")


@pytest.mark.parametrize(
    ("user", "env", "path"),
    [
        (0, {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/affinityd/affinityd.sock"),
        (1000, {"XDG_RUNTIME_DIR": "/somewhere"}, "/somewhere/affinityd.sock"),
        (1000, {}, "/run/user/1000/affinityd.sock"),
    ],
    ids=["root", "a user's session", "a user without a session's variables"],
)
def test_where_the_socket_is(
    monkeypatch: pytest.MonkeyPatch, user: int, env: dict[str, str], path: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert default_socket(env) == path
