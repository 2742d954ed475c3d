"""Whose socket the scripts believe: as affinityd's commands do, by ls and any sh."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes.client.test_trust import (
    ANOTHER,
    CASES,
    NOBODY,
    SOMEBODY,
    as_root,
    folder,
    listener,
    spoil,
)
from tests.support.paths import REPOSITORY

__all__ = ["folder"]

TRUST = REPOSITORY / "slurm/pinning.sh"
SHELLS = [it for it in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(it[0])]
ASK = f'proc=/proc ls=ls id=id; . {TRUST}; trusted_socket "$1" "$2"'


def judged(path: Path, uids: str = "", before: Sequence[str] = ()) -> tuple[bool, str]:
    """Return whether the scripts trust a socket, and its path without links, or why not."""
    uids = f"{uids},{os.geteuid()}" if os.geteuid() else uids
    verdicts = set()
    for shell in SHELLS:
        command = [*before, *shell, "-c", ASK, "sh", str(path), uids]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        verdicts.add((done.returncode == 0, done.stdout))
    (verdict,) = verdicts
    return verdict


@pytest.mark.parametrize(("what", "part"), CASES)
def test_a_script_judges_as_a_command_does(folder: Path, what: str, part: str | None) -> None:
    path = spoil(folder, what)
    if part is None:
        assert judged(path) == (True, str(path))
        return
    shown = str(path) if part == "run/s" else f"{(folder / part).resolve()}/"
    uid = what.rpartition(":")[2]
    is_open = f"other users may write to {shown}, which"
    told = is_open if uid == what else f"{shown} belongs to uid {uid}, and"
    assert judged(path) == (False, f"{told} is not trusted")


@as_root
def test_a_script_believes_those_who_are_named(folder: Path) -> None:
    path = spoil(folder, "run:1234 run/s:1234")
    told = f"{folder}/run/ belongs to uid {SOMEBODY}, and is not trusted"
    for uids in (str(ANOTHER), "nobody,*"):
        assert judged(path, uids) == (False, told)
    for uids in (f"{ANOTHER},{SOMEBODY}", f"root,{SOMEBODY},"):
        assert judged(path, uids) == (True, str(path))


def test_a_script_asks_where_links_lead(folder: Path) -> None:
    """So no user who could change a link on the way has a say."""
    path = spoil(folder, "l->run o=0777 o/l->../run")
    for way in ("l/s", "o/l/s", "o/../run/s"):
        assert judged(folder / way) == (True, str(path))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("{}/none", "the owner of {} cannot be seen"),
        ("{}/none/s", "{} is not there, or cannot be looked at"),
        ("{}/l", "{} is a link; name the socket itself"),
        ("{}/run", "{} is no socket"),
        ("/dev/null", "{} is no socket"),
    ],
)
def test_what_is_no_socket_is_not_believed(folder: Path, path: str, told: str) -> None:
    spoil(folder, "l->run/s")
    path = path.format(folder)
    assert judged(Path(path)) == (False, told.format(path))


def test_without_ls_nothing_is_believed(folder: Path) -> None:
    path = listener(folder / "run/s")
    command = [str(shutil.which("bash")), "--posix", "-c", ASK, "sh", str(path), "0"]
    env = {"PATH": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, f"the owner of {path} cannot be seen")


@as_root
def test_in_a_user_namespace_those_are_believed_who_have_no_number(folder: Path) -> None:
    path = listener(folder / "run/s")
    inside = ["unshare", "--user", f"--map-user={SOMEBODY}"]
    for part, shown in ((folder / "run", f"{folder}/run/"), (path, str(path))):
        told = f"{shown} belongs to uid {SOMEBODY}, and is not trusted"
        assert judged(path, before=inside) == (False, told)
        os.chown(part, NOBODY, NOBODY)
    assert judged(path, before=inside) == (True, str(path))


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_long_answer_is_read_at_once(shell: Sequence[str]) -> None:
    """To cut a line out of a hostile one took dash 12 s."""
    plan = "AFFINITYD_CPULIST=1\nAFFINITYD_LOCALITY=local\nAFFINITYD_ALLOWED=0-1"
    read = f'switch=on; . {TRUST}; answer=$(cat); understand && echo "$cpulist $locality $allowed"'
    command = [*shell, "-c", f"ulimit -t 4; {read}"]  # seconds of a CPU
    done = subprocess.run(
        command, input=f"{'a' * 65000}\n{plan}", capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 local 0-1\n"
