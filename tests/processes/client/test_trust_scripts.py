"""Whose socket the scripts believe: as affinityd's commands do, by ls and any sh."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from affinityd.client import trust
from affinityd.errors import UntrustedError
from tests.processes.client.test_trust import (
    ANOTHER,
    NOBODY,
    SOMEBODY,
    folder,
    link,
    listener,
    opened,
)
from tests.support.paths import REPOSITORY

__all__ = ["folder"]


TRUST = REPOSITORY / "slurm/pinning.sh"
SHELLS = [
    words for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(words[0])
]
ASK = f'proc=/proc ls=ls id=id; . {TRUST}; trusted_socket "$1" "$2"'

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another's files")


def judged(
    path: Path, uids: str = "", shell: Sequence[str] = ("sh",), before: Sequence[str] = ()
) -> tuple[bool, str]:
    """Return whether a script trusts a socket, and its path without links, or why not."""
    if os.geteuid() != 0:
        uids = f"{uids},{os.geteuid()}"
    done = subprocess.run(
        [*before, *shell, "-c", ASK, "sh", str(path), uids],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout


def owned(path: Path, uid: int) -> Path:
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


def with_mode(path: Path, mode: int) -> Path:
    path.chmod(mode)
    return path


Spoil = Callable[[Path], object]
#: What is done to a folder with `run/s` in it, and what a script says of that; None: it is trusted.
CASES: dict[str, tuple[Spoil, str | None]] = {
    "root's alone": (lambda it: it, None),
    "its folder open to a group": (
        lambda it: with_mode(it / "run", 0o775),
        "others may write to {}/run/, which is not trusted",
    ),
    "its folder open to others": (
        lambda it: with_mode(it / "run", 0o757),
        "others may write to {}/run/, which is not trusted",
    ),
    "a folder above open to others": (
        lambda it: with_mode(it, 0o777),
        "others may write to {}/, which is not trusted",
    ),
    "its folder open to others, and sticky": (lambda it: with_mode(it / "run", 0o1777), None),
    "its folder sticky, for a group": (lambda it: with_mode(it / "run", 0o1770), None),
}
OWNERS: dict[str, tuple[Spoil, str]] = {
    "a folder above": (lambda it: owned(it, SOMEBODY), "{}/"),
    "its folder": (lambda it: owned(it / "run", SOMEBODY), "{}/run/"),
    "the socket": (lambda it: owned(it / "run/s", SOMEBODY), "{}/run/s"),
    "the socket, in a sticky folder": (
        lambda it: owned(with_mode(it / "run", 0o1777) / "s", SOMEBODY),
        "{}/run/s",
    ),
}


@pytest.mark.parametrize("shell", SHELLS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_script_judges_folders_as_a_command_does(
    folder: Path, case: str, shell: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFFINITYD_DAEMON_UID", str(os.geteuid()))
    path = listener(folder / "run/s")
    spoil, told = CASES[case]
    spoil(folder)
    expected = (True, str(path)) if told is None else (False, told.format(folder))
    assert judged(path, shell=shell) == expected
    if told is None:
        trust.check_path(str(path))
    else:
        with pytest.raises(UntrustedError):
            trust.check_path(str(path))


@as_root
@pytest.mark.parametrize("shell", SHELLS, ids=str)
@pytest.mark.parametrize("case", OWNERS)
def test_a_script_judges_owners_as_a_command_does(
    folder: Path, case: str, shell: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = listener(folder / "run/s")
    spoil, part = OWNERS[case]
    spoil(folder)
    told = f"{part.format(folder)} belongs to uid {SOMEBODY}, and is not trusted"
    for uids, believes in (
        ("", False),
        (str(ANOTHER), False),
        ("nobody,*", False),
        (f"{ANOTHER},{SOMEBODY}", True),
        (f"root,{SOMEBODY},", True),
    ):
        assert judged(path, uids, shell) == (believes, str(path) if believes else told)
        monkeypatch.setenv("AFFINITYD_DAEMON_UID", uids.replace(",*", ""))
        if believes:
            trust.check_path(str(path))
        else:
            with pytest.raises(UntrustedError):
                trust.check_path(str(path))


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_a_script_asks_where_links_lead(folder: Path, shell: Sequence[str]) -> None:
    """So nobody who could change a link on the way has a say."""
    path = listener(folder / "run/s")
    for way in (
        link(folder / "l", "run") / "s",
        link(opened(folder / "o") / "l", "../run") / "s",
        folder / "o/../run/s",
    ):
        assert judged(way, shell=shell) == (True, str(path))


@pytest.mark.parametrize("shell", SHELLS, ids=str)
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda it: it / "none", "whose {} is cannot be seen"),
        (lambda it: it / "none/s", "{} is not there, or cannot be looked at"),
        (lambda it: link(it / "l", "run/s"), "{} is a link; name the socket itself"),
        (lambda it: it / "run", "{} is no socket"),
        (lambda _it: Path("/dev/null"), "{} is no socket"),
    ],
    ids=["nothing", "in nothing", "a link", "a folder", "a device"],
)
def test_what_is_no_socket_is_not_believed(
    folder: Path, make: Callable[[Path], Path], told: str, shell: Sequence[str]
) -> None:
    listener(folder / "run/s")
    path = make(folder)
    assert judged(path, shell=shell) == (False, told.format(path))


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_without_ls_nobody_is_believed(folder: Path, shell: Sequence[str]) -> None:
    path = listener(folder / "run/s")
    done = subprocess.run(
        [str(shutil.which(shell[0])), *shell[1:], "-c", ASK, "sh", str(path), str(os.geteuid())],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if shell[0] == "busybox":
        assert done.stdout == str(path)  # ls is part of it
    else:
        assert (done.returncode, done.stdout) == (1, f"whose {path} is cannot be seen")


@as_root
@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_in_a_user_namespace_who_has_no_number_is_believed(
    folder: Path, shell: Sequence[str]
) -> None:
    path = listener(folder / "run/s")
    inside = ["unshare", "--user", f"--map-user={SOMEBODY}"]
    for part, shown in ((folder / "run", f"{folder}/run/"), (path, str(path))):
        told = f"{shown} belongs to uid {SOMEBODY}, and is not trusted"
        assert judged(path, shell=shell, before=inside) == (False, told)
        owned(part, NOBODY)
    assert judged(path, shell=shell, before=inside) == (True, str(path))
    assert judged(path, shell=shell)[0] is False  # where nobody is a user like any other


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_long_answer_is_read_in_a_moment(shell: Sequence[str]) -> None:
    """To cut a line out of a hostile one took dash 12 s."""
    lines = (
        "a" * 65000,
        "AFFINITYD_CPULIST=1",
        "AFFINITYD_LOCALITY=local",
        "AFFINITYD_ALLOWED=0-1",
    )
    read = f'switch=on; . {TRUST}; answer=$(cat); understand && echo "$cpulist $locality $allowed"'
    before = os.times()
    done = subprocess.run(
        [*shell, "-c", read], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    after = os.times()
    assert done.stdout == "1 local 0-1\n"
    assert after.children_user - before.children_user < 1  # seconds of a CPU
