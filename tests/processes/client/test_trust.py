"""Whose word a client takes, a command's and a script's: real owners, modes and links."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from affinityd.client import trust
from affinityd.errors import InvalidRequestError, UntrustedError
from tests.support.paths import REPOSITORY

SOMEBODY, ANOTHER = 1234, 1235  #: users that no machine knows
NOBODY = 65534  #: the overflow uid, which is a user like any other where all have numbers

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another's files")

SCRIPT = REPOSITORY / "slurm/pinning.sh"
SHELLS = [it for it in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(it[0])]
JUDGE = f'proc=/proc ls=ls id=id; . {SCRIPT}; trusted_socket "$1" "$2"'
#: In a user namespace, where root of the node is this user.
INSIDE = ("unshare", "--user", f"--map-user={SOMEBODY}")

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


def judged(path: Path, uids: str = "", before: Sequence[str] = ()) -> str:
    """Return `believed: ` and a socket's path without links, or `not: ` and why, by the scripts."""
    uids = f"{uids},{os.geteuid()}" if os.geteuid() else uids
    verdicts = set()
    for shell in SHELLS:
        command = [*before, *shell, "-c", JUDGE, "sh", str(path), uids]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        verdicts.add(f"{'believed' if done.returncode == 0 else 'not'}: {done.stdout}")
    (verdict,) = verdicts
    return verdict


@pytest.mark.parametrize(
    ("what", "way", "part"), [*((what, "{}/run/s", part) for what, part in CASES), *WAYS]
)
def test_a_path_is_trusted_that_no_other_user_could_have_changed(
    folder: Path, what: str, way: str, part: str | None
) -> None:
    """Scripts ask where links lead, so no user who could change a link on the way has a say."""
    socket_, path = spoil(folder, what), Path(way.format(folder))
    assert path.samefile(socket_)
    if part is None:
        trust.check_path(str(path))
    else:
        wrong, uid = os.path.normpath(folder / part), what.rpartition(":")[2]
        assert distrust(path) in {
            f"other users may write to {wrong}; chmod go-w {wrong} prevents that",
            f"{wrong} belongs to uid {uid}, which is neither root nor in AFFINITYD_DAEMON_UID",
        }
    if path.is_symlink():
        assert judged(path) == f"not: {path} is a link; name the socket itself"
    elif part is None or "->" in what or ".." in way:
        assert judged(path) == f"believed: {socket_}"
    else:
        shown = str(path) if part == "run/s" else f"{(folder / part).resolve()}/"
        assert judged(path) in {
            f"not: other users may write to {shown}, which is not trusted",
            f"not: {shown} belongs to uid {uid}, and is not trusted",
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
    for uids in (str(ANOTHER), "nobody,*"):
        assert judged(path, uids).startswith("not: ")
    trust_alone(monkeypatch, ANOTHER, SOMEBODY)
    trust.check_path(str(path))
    for uids in (f"{ANOTHER},{SOMEBODY}", f"root,{SOMEBODY},"):
        assert judged(path, uids) == f"believed: {path}"
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


def test_users_are_named_by_name_or_number() -> None:
    def uids(text: str) -> frozenset[int]:
        return trust.trusted_uids({"AFFINITYD_DAEMON_UID": text})

    assert (uids(""), uids(" 1 , 65532,")) == (frozenset(), frozenset({1, 65532}))
    assert uids("root,4294967294") == frozenset({0, 2**32 - 2})
    told = r"^AFFINITYD_DAEMON_UID: there is no user '.*' here; give a user's name or number$"
    for text in ("4294967295", "no such user", "a\0b"):
        with pytest.raises(InvalidRequestError, match=told):
            uids(text)


# What scripts alone come across.


def test_what_is_no_socket_is_not_believed(folder: Path) -> None:
    for path, told in (
        (folder / "none", "the owner of {} cannot be seen"),
        (folder / "none/s", "{} is not there, or cannot be looked at"),
        (Path("/dev/null"), "{} is no socket"),
    ):
        assert judged(path) == f"not: {told.format(path)}"


def test_without_ls_nothing_is_believed(folder: Path) -> None:
    path = listener(folder / "run/s")
    command = [str(shutil.which("bash")), "--posix", "-c", JUDGE, "sh", str(path), "0"]
    env = {"PATH": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, f"the owner of {path} cannot be seen")


@as_root
def test_in_a_user_namespace_those_are_believed_who_have_no_number(folder: Path) -> None:
    path = listener(folder / "run/s")
    for part, shown in ((folder / "run", f"{folder}/run/"), (path, str(path))):
        told = f"not: {shown} belongs to uid {SOMEBODY}, and is not trusted"
        assert judged(path, before=INSIDE) == told
        os.chown(part, NOBODY, NOBODY)
    assert judged(path, before=INSIDE) == f"believed: {path}"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_long_answer_is_read_at_once(shell: Sequence[str]) -> None:
    """To cut a line out of a hostile one took dash 12 s."""
    plan = "AFFINITYD_CPULIST=1\nAFFINITYD_LOCALITY=local\nAFFINITYD_ALLOWED=0-1"
    read = f'switch=on; . {SCRIPT}; answer=$(cat); understand && echo "$cpulist $locality $allowed"'
    command = [*shell, "-c", f"ulimit -t 4; {read}"]  # seconds of a CPU
    done = subprocess.run(
        command, input=f"{'a' * 65000}\n{plan}", capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 local 0-1\n"
