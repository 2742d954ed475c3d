"""Whose word a client takes: real owners, modes and links, real users that listen."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.client import http as client
from affinityd.client import trust
from affinityd.errors import InvalidRequestError, NoDaemonError, UntrustedError
from tests.support.servers import serving

SOMEBODY, ANOTHER = 1234, 1235  #: users that no machine knows
NOBODY = 65534  #: the overflow uid, which is a user like any other where all have numbers

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another's files")

#: What is done to a folder with `run/s` in it, PART=MODE, PART:UID or LINK->TARGET, and the part
#: that is then not trusted; None: all is.
CASES = [
    ("run=0775", "run"),
    (".=0757", "."),
    ("run=1777 .=1777", None),  # others may add to it, and not take away what is there
    (".:1234", "."),
    ("run:1234", "run"),
    (f"run/s:{NOBODY}", "run/s"),
    ("run=1777 run/s:1234", "run/s"),
    ("run=1777 .=1777 run:1234", "run"),
]
#: The same of ways to it by links, as the kernel follows them; {} is the folder.
WAYS = [
    ("l->run", "{}/l/s", None),
    ("l->run/s m->{}/l", "{}/m", None),
    (".=1777 l->run l:1234", "{}/l/s", "l"),
    ("o=0777 o/l->../run", "{}/o/l/s", "o"),
    ("o=0777 l->{}/o/../run", "{}/l/s", "o"),
    ("o=0777 o/m->../run l->{}/o/m", "{}/l/../run/s", "o"),
    ("o=0777", "{}/o/../run/s", "o"),
    ("", "/../..{}/run/s", None),
]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", "/nonexistent")
    trust_alone(monkeypatch)


def trust_alone(monkeypatch: pytest.MonkeyPatch, *uids: object) -> None:
    """Trust these, and who runs the tests, whose the folders of tests are."""
    named = ",".join(map(str, [*uids, *([os.geteuid()] if os.geteuid() else [])]))
    monkeypatch.setenv("AFFINITYD_DAEMON_UID", named)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder of ours that every user may enter, without links above it."""
    with tempfile.TemporaryDirectory(dir=os.path.realpath(tempfile.gettempdir())) as name:
        Path(name).chmod(0o755)
        (Path(name) / "run").mkdir(mode=0o755)
        yield Path(name)


def listener(path: Path) -> Path:
    """Leave a socket at a path, open to everybody as a daemon's."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    path.chmod(0o666)
    return path


def spoil(folder: Path, what: str) -> Path:
    """Leave a socket, do to its folder what a case says, and return its path."""
    path = listener(folder / "run/s")
    for word in what.format(folder).split():
        part, sign, value = re.split("(=|:|->)", word)
        if sign == "->":
            (folder / part).symlink_to(value)
        elif sign == "=":
            (folder / part).mkdir(exist_ok=True)
            (folder / part).chmod(int(value, 8))
        elif os.geteuid() != 0:
            pytest.skip("only root makes another's files")
        else:
            os.chown(folder / part, int(value), int(value), follow_symlinks=False)
    return path


def distrust(path: Path | str) -> str:
    """Return why a path is not trusted, which is told on one line."""
    with pytest.raises(UntrustedError) as caught:
        trust.check_path(str(path))
    assert str(caught.value).isprintable()
    return str(caught.value).removeprefix(f"{path} is not trusted: ")


# The way to a socket.


@pytest.mark.parametrize(
    ("what", "way", "part"), [*((what, "{}/run/s", part) for what, part in CASES), *WAYS]
)
def test_a_path_is_trusted_that_no_other_user_could_have_changed(
    folder: Path, what: str, way: str, part: str | None
) -> None:
    socket_, path = spoil(folder, what), Path(way.format(folder))
    assert path.samefile(socket_)
    if part is None:
        trust.check_path(str(path))
        return
    wrong = os.path.normpath(folder / part)
    neither = "which is neither root nor in AFFINITYD_DAEMON_UID"
    assert distrust(path) in {
        f"other users may write to {wrong}; chmod go-w {wrong} prevents that",
        f"{wrong} belongs to uid {what.rpartition(':')[2]}, {neither}",
    }


def test_a_file_is_trusted_that_others_may_not_write_to(folder: Path) -> None:
    path = folder / "run/node.json"
    path.touch(0o644)
    trust.check_path(str(path))
    for mode in (0o666, 0o1666):
        path.chmod(mode)
        assert distrust(path).startswith(f"other users may write to {path};")


@as_root
def test_users_are_trusted_whom_variables_or_the_settings_file_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spoil(folder, ".:1234 run:1234 run/s:1234")
    trust_alone(monkeypatch, ANOTHER)
    assert f"{folder} belongs to uid {SOMEBODY}," in distrust(path)
    trust_alone(monkeypatch, ANOTHER, SOMEBODY)
    trust.check_path(str(path))
    monkeypatch.delenv("AFFINITYD_DAEMON_UID")
    distrust(path)
    (folder / "conf").write_text(f"AFFINITYD_DAEMON_UID={SOMEBODY}\n")
    monkeypatch.setenv("AFFINITYD_CONFIG", str(folder / "conf"))
    trust.check_path(str(path))


@as_root
def test_outside_of_a_container_a_user_does_not_believe_a_folder_of_his_own(folder: Path) -> None:
    path = spoil(folder, f".:{SOMEBODY}")
    check = "import sys; from affinityd.client import trust; trust.check_path(sys.argv[1])"
    user = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups")
    command = [*user, sys.executable, "-c", check, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"belongs to uid {SOMEBODY}" in done.stderr


def test_as_many_links_are_followed_as_the_kernel_follows(folder: Path) -> None:
    listener(folder / "0")
    for number in range(1, 42):
        (folder / str(number)).symlink_to(str(number - 1))
    (folder / "circle").symlink_to("circle")
    for follow in (os.stat, trust.check_path):
        follow(str(folder / "40"))
        for too_many in ("41", "circle"):
            with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
                follow(str(folder / too_many))


def test_a_relative_path_goes_from_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spoil(folder, "").parent)
    trust.check_path("../run/.//s")
    folder.chmod(0o777)
    assert distrust("s").startswith(f"other users may write to {folder};")


@pytest.mark.parametrize(
    ("text", "uids"),
    [
        *(("", set()), (" 1 , 65532,", {1, 65532}), ("root,4294967294", {0, 2**32 - 2})),
        *(("4294967295", None), ("no such user", None), ("a\0b", None)),
    ],
)
def test_users_are_named_by_name_or_number(text: str, uids: set[int] | None) -> None:
    if uids is not None:
        assert trust.trusted_uids({"AFFINITYD_DAEMON_UID": text}) == uids
        return
    told = r"^AFFINITYD_DAEMON_UID: there is no user '.*' here; give a user's name or number$"
    with pytest.raises(InvalidRequestError, match=told):
        trust.trusted_uids({"AFFINITYD_DAEMON_UID": text})


# What listens.

#: Binds as who it was, listens as a user, and prints what it is sent.
LISTEN = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    os.setuid(int(sys.argv[2]))
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            sent = connection.recv(65536)
            print(sent, flush=True)
            if sent:
                connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nme")
"""


@contextmanager
def listening(path: Path, uid: int) -> Iterator[Callable[[], str]]:
    """Have a user listen on a socket that is ours; yield what returns the next that it is sent."""
    command = [sys.executable, "-I", "-S", "-c", LISTEN, str(path), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            yield child.stdout.readline
        finally:
            child.kill()


def ask(path: Path) -> str:
    return client.fetch(str(path), "/readyz", time.monotonic() + 60)


@as_root
def test_nothing_is_sent_to_a_user_s_process_unless_that_user_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "run/s"
    told = f"^the daemon at {path} is not trusted: uid {SOMEBODY} listens there, which is neither"
    with listening(path, SOMEBODY) as sent:
        with pytest.raises(UntrustedError, match=told):
            ask(path)
        assert sent() == "b''\n"
        trust_alone(monkeypatch, SOMEBODY)
        assert ask(path) == "me"


def test_a_daemon_that_is_trusted_is_not_asked_where_others_could_listen(folder: Path) -> None:
    sent: list[bytes] = []

    def behave(connection: socket.socket, _over: object) -> None:
        sent.append(connection.recv(65536))

    (folder / "run").chmod(0o777)
    with serving(folder / "run/s", behave) as path, pytest.raises(UntrustedError, match="go-w"):
        ask(path)
    assert sent == [b""]
    with pytest.raises(NoDaemonError):  # whose it is where nothing listens is no question
        ask(listener(folder / "run/left"))


#: In a user namespace: root of the node is uid 1234 there, and all others are the overflow uid.
INSIDE = """
import sys, time
from affinityd.client import http as client
try: print(client.fetch(sys.argv[1], "/readyz", time.monotonic() + 60))
except client.DaemonError as error: print(error)
"""


@as_root
def test_in_a_user_namespace_those_are_trusted_who_have_no_number_there(folder: Path) -> None:
    """The folders above are one's own there, as those of a container that a user made."""
    path = folder / "run/s"
    command = ["unshare", "--user", f"--map-user={SOMEBODY}", sys.executable, "-c", INSIDE]
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "AFFINITYD_CONFIG": "/nonexistent"}

    def asked_inside() -> str:
        return subprocess.check_output([*command, str(path)], env=env, text=True).strip()

    with listening(path, ANOTHER):
        for part in (folder / "run", path):
            assert f"{part} belongs to uid {SOMEBODY}," in asked_inside()
            os.chown(part, ANOTHER, ANOTHER)
        assert asked_inside() == "me"
    path.unlink()
    with listening(path, 0):
        assert f"uid {SOMEBODY} listens" in asked_inside()
