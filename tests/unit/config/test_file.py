"""Whose word counts where a client looks for settings and for a daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd import config
from affinityd.errors import InvalidRequestError

SYSTEM = "/run/affinityd/affinityd.sock"
EVEN, ALL = {"AFFINITYD_MODE": "even"}, {"AFFINITYD_MODE": "all"}


@pytest.mark.parametrize(
    ("file", "environ", "expected"),
    [
        ("AFFINITYD_MODE=even\nAFFINITYD_SHARE=node", ALL, {**ALL, "AFFINITYD_SHARE": "node"}),
        ("AFFINITYD_MODE=even", {"AFFINITYD_MODE": ""}, EVEN),
        ("AFFINITYD_MODE=", {}, {}),
        ("AFFINITYD_MODE=even\nAFFINITYD_MODE=all", {}, ALL),
        ("MODE=x\nXAFFINITYD_MODE=all\naffinityd_mode=node", {"MODE": "even", "PATH": "/bin"}, {}),
        # It is a systemd EnvironmentFile.
        ("AFFINITYD_MODE=even\r\nPATH='/bin'\r\n", {}, EVEN),
        (r"AFFINITYD_VISIBLE=0\,1", {}, {"AFFINITYD_VISIBLE": "0,1"}),
        ('AFFINITYD_MODE="even"', {}, EVEN),
        ("  AFFINITYD_MODE = 'even'  ", {}, EVEN),
        ("# AFFINITYD_MODE=even\n; AFFINITYD_MODE=even\n\n", {}, {}),
        ("\ufeffAFFINITYD_MODE=even", {}, EVEN),
        ("# a form feed\fAFFINITYD_MODE=even", {}, {}),
        ("AFFINITYD_MODE=ev\\\nen", {}, EVEN),
    ],
)
def test_a_variable_counts_before_the_file(
    tmp_path: Path, file: str, environ: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    path = tmp_path / "affinityd.conf"
    path.write_text(file)
    told = config.variables({**environ, "AFFINITYD_CONFIG": str(path)})
    assert told == {**expected, "AFFINITYD_CONFIG": str(path)}


def test_the_file_is_the_system_s_unless_another_is_named_and_need_not_be_there() -> None:
    assert config.path({}) == config.path({"AFFINITYD_CONFIG": ""}) == "/etc/affinityd.conf"
    assert config.path({"AFFINITYD_CONFIG": "/etc/other"}) == "/etc/other"
    assert config.read_file("/nowhere/none") == {}


def refusal(path: Path) -> str:
    """Return what is said of a file."""
    with pytest.raises(InvalidRequestError) as caught:
        config.read_file(str(path))
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("A=1\nnonsense of mine\n", "FILE:2: 'nonsense' is not written as NAME=value"),
        ("export A_B=/\n", "FILE:1: 'export A_B' is not written as NAME=value"),
        ("A_B='/open\n", "FILE:1: 'A_B': No closing quotation"),
        ("A=\0", "FILE has a NUL in it"),
        (b"AFFINITYD_MODE=\xff", "FILE is not UTF-8"),
        (b"#" * (2**20 + 1), "FILE cannot be read: longer than 1048576 bytes"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_a_line(
    tmp_path: Path, content: str | bytes, line: str
) -> None:
    path = tmp_path / "affinityd.conf"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert refusal(path) == line


def test_a_file_of_a_mebibyte_is_read(tmp_path: Path) -> None:
    (tmp_path / "affinityd.conf").write_bytes(b"#" * 2**20)
    assert config.read_file(str(tmp_path / "affinityd.conf")) == {}


def test_what_is_no_file_is_not_read_and_what_has_nothing_yet_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a FIFO, or /proc/kmsg, which is a regular file by its mode, and has a reader wait."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, Path("/dev/null")):
        assert refusal(path) == "FILE cannot be read: not a regular file"
    ends = os.open(fifo, os.O_RDWR)
    monkeypatch.setattr("affinityd.linux.files.stat.S_ISREG", lambda _mode: True)
    assert re.fullmatch(r"FILE cannot be read: .*temporarily unavailable", refusal(fifo))
    os.close(ends)


# Where a daemon is looked for.


def test_a_client_asks_at_the_configured_socket_alone_else_the_system_s_before_its_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for user, folder, own in (
        (0, "/run/me", SYSTEM),
        (1000, "/run/me", "/run/me/affinityd.sock"),
        (1000, "", "/run/user/1000/affinityd.sock"),
    ):
        monkeypatch.setattr(os, "geteuid", lambda it=user: it)
        environ = {"XDG_RUNTIME_DIR": folder}
        assert config.default_socket(environ) == own
        assert config.sockets({}, environ) == ([SYSTEM, own] if user else [SYSTEM])
        assert config.sockets({"AFFINITYD_SOCKET": "/x"}, environ) == ["/x"]
