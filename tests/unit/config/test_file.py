"""Whose word counts where a client looks for settings and for a daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.config import file as conffile
from affinityd.errors import InvalidRequestError

NOBODY = 65534
SYSTEM = "/run/affinityd/affinityd.sock"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")


def variables(tmp_path: Path, file: str, environ: Mapping[str, str]) -> dict[str, str]:
    path = tmp_path / "affinityd.conf"
    path.write_text(file)
    told = conffile.variables({**environ, "AFFINITYD_CONFIG": str(path)})
    assert told.pop("AFFINITYD_CONFIG") == str(path)
    return told


def as_nobody(question: str, folder: Path | None = None) -> str:
    """Return what another user prints of a question, in a folder."""
    code = f"""
import os
from affinityd.config import file as conffile
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
try: print({question})
except conffile.InvalidRequestError as error: print(error)"""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=env, cwd=folder, text=True).strip()


@pytest.mark.parametrize(
    ("file", "environ", "expected"),
    [
        pytest.param("", {}, {}, id="nobody says anything"),
        pytest.param("AFFINITYD_MODE=even", {}, {"AFFINITYD_MODE": "even"}, id="the file"),
        pytest.param("", {"AFFINITYD_MODE": "all"}, {"AFFINITYD_MODE": "all"}, id="a variable"),
        pytest.param(
            "AFFINITYD_MODE=even\nAFFINITYD_SHARE=node",
            {"AFFINITYD_MODE": "all"},
            {"AFFINITYD_MODE": "all", "AFFINITYD_SHARE": "node"},
            id="a variable counts before the file",
        ),
        pytest.param(
            "AFFINITYD_MODE=even",
            {"AFFINITYD_MODE": ""},
            {"AFFINITYD_MODE": "even"},
            id="an empty variable says nothing",
        ),
        pytest.param("AFFINITYD_MODE=", {}, {}, id="an empty assignment says nothing"),
        pytest.param(
            "AFFINITYD_MODE=even\nAFFINITYD_MODE=all",
            {},
            {"AFFINITYD_MODE": "all"},
            id="the last assignment counts",
        ),
        pytest.param(
            "MODE=even\nXAFFINITYD_MODE=all\naffinityd_mode=node",
            {"MODE": "even", "PATH": "/bin"},
            {},
            id="others' are left out",
        ),
        pytest.param(
            "AFFINITYD_MODE=even\r\nAFFINITYD_SHARE='node'\r\n",
            {},
            {"AFFINITYD_MODE": "even", "AFFINITYD_SHARE": "node"},
            id="lines may end as on other systems",
        ),
        pytest.param(
            r"AFFINITYD_VISIBLE=0\,1", {}, {"AFFINITYD_VISIBLE": "0,1"}, id="a backslash quotes"
        ),
    ],
)
def test_a_variable_counts_before_the_file(
    tmp_path: Path, file: str, environ: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    assert variables(tmp_path, file, environ) == expected


def test_the_file_is_the_system_s_unless_another_is_named() -> None:
    assert conffile.path({}) == conffile.path({"AFFINITYD_CONFIG": ""}) == "/etc/affinityd.conf"
    assert conffile.path({"AFFINITYD_CONFIG": "/etc/other"}) == "/etc/other"


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert conffile.read(str(tmp_path / "none")) == {}
    assert conffile.read(str(tmp_path / "none" / "none")) == {}


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """To read a FIFO that nobody writes to would take forever."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(
            InvalidRequestError,
            match=f"^{re.escape(str(path))} cannot be read: not a regular file$",
        ):
            conffile.read(str(path))


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "affinityd.conf"
    most = conffile.MAX_FILE
    path.write_bytes(b"#" * most)
    assert conffile.read(str(path)) == {}
    path.write_bytes(b"#" * (most + 1))
    with pytest.raises(InvalidRequestError, match=f"cannot be read: longer than {most} bytes$"):
        conffile.read(str(path))


def test_a_file_of_the_kernel_s_that_has_nothing_yet_is_not_waited_for(tmp_path: Path) -> None:
    """As /proc/kmsg, which is a regular file by its mode, and has a reader wait."""
    os.mkfifo(tmp_path / "fifo")
    ends = os.open(tmp_path / "fifo", os.O_RDWR)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("affinityd.linux.files.stat.S_ISREG", lambda _mode: True)
            with pytest.raises(InvalidRequestError, match=r"temporarily unavailable$"):
                conffile.read(str(tmp_path / "fifo"))
    finally:
        os.close(ends)


@needs_root
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.conf").touch(mode=0o600)
    tmp_path.chmod(0o755)
    told = as_nobody("conffile.read('my.conf')", tmp_path)
    assert told == "my.conf cannot be read: Permission denied"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "affinityd.conf"
    path.write_bytes(b"AFFINITYD_MODE=\xff")
    with pytest.raises(InvalidRequestError, match=r"affinityd\.conf is not UTF-8$"):
        conffile.read(str(path))


# Where a daemon is looked for.


def test_a_client_asks_at_the_configured_socket_alone() -> None:
    assert conffile.sockets({"AFFINITYD_SOCKET": "/x"}, {"XDG_RUNTIME_DIR": "/run/me"}) == ["/x"]


@needs_root
def test_root_asks_the_system_s_daemon() -> None:
    assert conffile.sockets({}, {"XDG_RUNTIME_DIR": "/run/me"}) == [SYSTEM]
    assert conffile.default_socket({"XDG_RUNTIME_DIR": "/run/me"}) == SYSTEM


@needs_root
@pytest.mark.parametrize(
    ("environ", "own"),
    [
        ({"XDG_RUNTIME_DIR": "/run/me"}, "/run/me/affinityd.sock"),
        ({"XDG_RUNTIME_DIR": ""}, f"/run/user/{NOBODY}/affinityd.sock"),
        ({}, f"/run/user/{NOBODY}/affinityd.sock"),
    ],
)
def test_a_user_asks_the_system_s_daemon_before_his_own(
    environ: Mapping[str, str], own: str
) -> None:
    assert as_nobody(f"conffile.sockets({{}}, {environ})") == str([SYSTEM, own])
    assert as_nobody(f"conffile.default_socket({environ})") == own
