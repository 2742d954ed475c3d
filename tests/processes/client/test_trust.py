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
from tests.support.servers import answering, http, serving

SOMEBODY, ANOTHER = 1234, 1235  #: users that no machine knows
NOBODY = 65534  #: the overflow uid, which is a user like any other where all have numbers

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another's files")


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


def distrust(path: Path | str) -> str:
    """Return why a path is not trusted, which is told on one line."""
    with pytest.raises(UntrustedError) as caught:
        trust.check_path(str(path))
    assert str(caught.value).isprintable()
    return str(caught.value)


# The way to a socket.


def test_what_nobody_else_can_write_to_is_trusted(folder: Path) -> None:
    trust.check_path(str(listener(folder / "run/s")))
    (folder / "run/node.json").touch(0o644)
    trust.check_path(str(folder / "run/node.json"))


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o722])
@pytest.mark.parametrize("where", [".", "run"], ids=["above", "its own"])
def test_a_folder_that_others_may_write_to_is_not(folder: Path, mode: int, where: str) -> None:
    path = listener(folder / "run/s")
    (folder / where).chmod(mode)
    part = (folder / where).resolve()
    assert distrust(path) == (
        f"{path} is not trusted: others may write to {part}; chmod go-w {part} keeps them off"
    )


@pytest.mark.parametrize("mode", [0o666, 0o1666], ids=["any", "sticky"])
def test_a_file_that_others_may_write_to_is_not(folder: Path, mode: int) -> None:
    (folder / "node.json").touch()
    (folder / "node.json").chmod(mode)
    assert "others may write to" in distrust(folder / "node.json")


def test_in_a_sticky_folder_what_is_there_is_its_owner_s(folder: Path) -> None:
    path = listener(folder / "run/s")
    for where in (folder, folder / "run"):
        where.chmod(0o1777)
        trust.check_path(str(path))


@as_root
@pytest.mark.parametrize("where", [".", "run", "run/s"])
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_what_belongs_to_somebody_else_is_not(
    folder: Path, where: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = listener(folder / "run/s")
    folder.chmod(mode)
    (folder / "run").chmod(mode)
    os.chown(folder / where, SOMEBODY, SOMEBODY)
    assert distrust(path) == (
        f"{path} is not trusted: {(folder / where).resolve()} belongs to uid {SOMEBODY}, "
        "and neither to root nor to whom AFFINITYD_DAEMON_UID names"
    )
    trust_alone(monkeypatch, ANOTHER)
    distrust(path)
    trust_alone(monkeypatch, ANOTHER, SOMEBODY)
    trust.check_path(str(path))


@as_root
@pytest.mark.parametrize("where", [".", "run"], ids=["above", "its own"])
def test_outside_of_a_container_a_user_does_not_believe_a_folder_of_his_own(
    folder: Path, where: str
) -> None:
    path = listener(folder / "run/s")
    os.chown(folder / where, SOMEBODY, SOMEBODY)
    check = "import sys; from affinityd.client import trust; trust.check_path(sys.argv[1])"
    user = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups")
    command = [*user, sys.executable, "-c", check, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"belongs to uid {SOMEBODY}" in done.stderr


@as_root
def test_nobody_is_a_user_like_any_other(folder: Path) -> None:
    path = listener(folder / "run/s")
    os.chown(path, NOBODY, NOBODY)
    assert f"uid {NOBODY}" in distrust(path)


# Links, as the kernel follows them.


def link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def opened(folder: Path) -> Path:
    """Make a folder to which others may write."""
    folder.mkdir()
    folder.chmod(0o777)
    return folder


Made = Callable[[Path], Path]
WAYS: dict[str, tuple[Made, str | None]] = {
    "to the folder": (lambda it: link(it / "l", "run") / "s", None),
    "to the folder, from the root": (lambda it: link(it / "l", f"{it}/run") / "s", None),
    "to the socket": (lambda it: link(it / "l", "run/s"), None),
    "to a link": (lambda it: link(it / "m", str(link(it / "l", "run"))) / "s", None),
    "in a folder of others": (lambda it: link(opened(it / "o") / "l", "../run") / "s", "o"),
    "through a folder of others": (
        lambda it: link(it / "l", f"{opened(it / 'o')}/../run") / "s",
        "o",
    ),
    "up from where a link leads": (
        lambda it: link(it / "l", f"{link(opened(it / 'o') / 'm', '../run')}") / "../run/s",
        "o",
    ),
    "up beyond the root": (lambda it: Path(f"/../..{it}/run/s"), None),
    "through a folder of others by name": (lambda it: opened(it / "o") / "../run/s", "o"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_link_is_trusted_as_what_it_goes_through(folder: Path, way: str) -> None:
    listener(folder / "run/s")
    make, wrong = WAYS[way]
    path = make(folder)
    assert path.samefile(folder / "run/s")
    if wrong is None:
        trust.check_path(str(path))
    else:
        assert f"others may write to {folder / wrong};" in distrust(path)


@as_root
def test_a_link_that_somebody_else_made_is_not_trusted(folder: Path) -> None:
    listener(folder / "run/s")
    folder.chmod(0o1777)
    os.chown(link(folder / "l", "run"), SOMEBODY, SOMEBODY, follow_symlinks=False)
    assert f"{folder}/l belongs to uid {SOMEBODY}" in distrust(folder / "l/s")


def test_links_in_a_circle_end(folder: Path) -> None:
    link(folder / "a", "b")
    link(folder / "b", "a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        trust.check_path(str(folder / "a"))


def test_as_many_links_are_followed_as_the_kernel_follows(folder: Path) -> None:
    listener(folder / "0")
    for number in range(1, 42):
        link(folder / str(number), str(number - 1))
    for number, follows in ((40, True), (41, False)):
        path = folder / str(number)
        if follows:
            assert path.stat()
            trust.check_path(str(path))
        else:
            for follow in (path.stat, lambda path=path: trust.check_path(str(path))):
                with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
                    follow()


@pytest.mark.parametrize("path", ["s", "./s", "../run/s", ".//s"])
def test_a_relative_path_goes_from_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    listener(folder / "run/s")
    monkeypatch.chdir(folder / "run")
    trust.check_path(path)
    folder.chmod(0o777)
    assert distrust(path).startswith(f"{path} is not trusted: others may write to {folder};")


# Whom the settings name.


@pytest.mark.parametrize(
    ("text", "uids"),
    [
        ("", set()),
        ("0", {0}),
        ("65532", {65532}),
        (" 1 , 65532,", {1, 65532}),
        ("4294967294", {2**32 - 2}),
        ("root", {0}),
        ("root,7", {0, 7}),
    ],
)
def test_users_are_named_by_name_or_number(text: str, uids: set[int]) -> None:
    assert trust.trusted_uids({"AFFINITYD_DAEMON_UID": text}) == uids


@pytest.mark.parametrize(
    "text", ["4294967295", "-1", "+1", "1.0", "٣", "no such user", "1;2", "a\0b", "9" * 5000]
)
def test_who_is_no_user_is_named(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        trust.trusted_uids({"AFFINITYD_DAEMON_UID": text})
    assert re.fullmatch(
        r"AFFINITYD_DAEMON_UID: there is no user '.+' here; give a user's name or number",
        str(caught.value),
    )
    assert len(str(caught.value)) < 150


@as_root
def test_the_settings_file_names_them_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = listener(folder / "run/s")
    os.chown(path, SOMEBODY, SOMEBODY)
    (folder / "conf").write_text(f"AFFINITYD_DAEMON_UID={SOMEBODY}\n")
    monkeypatch.delenv("AFFINITYD_DAEMON_UID")
    distrust(path)
    monkeypatch.setenv("AFFINITYD_CONFIG", str(folder / "conf"))
    trust.check_path(str(path))


# Who listens.

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
def listening(path: Path, uid: int) -> Iterator[subprocess.Popen[str]]:
    """Have a user listen on a socket that is ours."""
    command = [sys.executable, "-I", "-S", "-c", LISTEN, str(path), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            assert child.stdout.readline()
            yield child
        finally:
            child.kill()


def ask(path: Path) -> str:
    return client.fetch(str(path), "/readyz", time.monotonic() + 5)


@as_root
def test_nothing_is_sent_to_whom_nobody_named(folder: Path) -> None:
    path = folder / "run/s"
    with listening(path, SOMEBODY) as child:
        with pytest.raises(UntrustedError) as caught:
            ask(path)
        assert str(caught.value) == (
            f"the daemon at {path} is not trusted: uid {SOMEBODY} listens, "
            "and neither root nor whom AFFINITYD_DAEMON_UID names"
        )
        assert child.stdout
        assert child.stdout.readline() == "b''\n"


@as_root
def test_who_is_named_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust_alone(monkeypatch, SOMEBODY)
    with listening(folder / "run/s", SOMEBODY):
        assert ask(folder / "run/s") == "me"


def test_a_daemon_that_is_trusted_is_not_asked_where_others_could_listen(folder: Path) -> None:
    sent: list[bytes] = []

    def behave(connection: socket.socket, _over: object) -> None:
        sent.append(connection.recv(65536))

    (folder / "run").chmod(0o777)
    with serving(folder / "run/s", behave) as path, pytest.raises(UntrustedError, match="go-w"):
        ask(path)
    assert sent == [b""]


def test_where_nobody_listens_is_not_asked_whose_it_is(folder: Path) -> None:
    (folder / "run").chmod(0o777)
    with pytest.raises(NoDaemonError):
        ask(listener(folder / "run/s"))


def test_a_user_s_own_daemon_is_his_word_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root is who everybody trusts; anybody else has to say so."""
    with serving(folder / "run/s", answering(http("200 OK", b"me"))) as path:
        assert ask(path) == "me"
        monkeypatch.delenv("AFFINITYD_DAEMON_UID")
        if os.geteuid() == 0:
            assert ask(path) == "me"
        else:
            with pytest.raises(UntrustedError, match=f"uid {os.geteuid()} listens"):
                ask(path)


# In a user namespace: root of the node is uid 1234 there, and all others are the overflow uid.

INSIDE = """
import sys, time
from affinityd.client import http as client
try: print(client.fetch(sys.argv[1], "/readyz", time.monotonic() + 5))
except client.DaemonError as error: print(error)
"""


def asked_inside(path: Path) -> str:
    command = ["unshare", "--user", f"--map-user={SOMEBODY}", sys.executable, "-c", INSIDE]
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "AFFINITYD_CONFIG": "/nonexistent"}
    return subprocess.check_output([*command, str(path)], env=env, text=True).strip()


@as_root
def test_in_a_user_namespace_who_has_no_number_there_is_trusted(folder: Path) -> None:
    """The folders above are one's own there, as those of a container that a user made."""
    path = folder / "run/s"
    with listening(path, ANOTHER):
        for part in (folder / "run", path):
            assert f"{part} belongs to uid {SOMEBODY}," in asked_inside(path)
            os.chown(part, ANOTHER, ANOTHER)
        assert asked_inside(path) == "me"


@as_root
def test_in_a_user_namespace_who_has_a_number_there_is_not_trusted(folder: Path) -> None:
    path = folder / "run/s"
    with listening(path, 0):
        assert f"uid {SOMEBODY} listens" in asked_inside(path)
