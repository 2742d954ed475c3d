"""Switched on by degrees: what a job and its site say, as slurm/README.md has it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.config import file
from tests.e2e.slurm.node import HOME, SCRIPTS, Node, node
from tests.e2e.slurm.rig import Setup
from tests.support.daemons import Daemon, running
from tests.support.tiny import FAR, NEAR

TWO = ("--ntasks=2", "--gres=gpu:small:2")
THEIRS = [HOME[2], HOME[3]]
SLICES = [NEAR, FAR]  #: where task/affinity puts the two: each far from its GPU
WOULD = [f"observe: would run on CPUs {cpus} (local)" for cpus in THEIRS]
NO_WORD = "is none of on, observe and off"

PAGE = (SCRIPTS / "README.md").read_text()
(SECTION,) = re.findall(r"^## Switch it on by degrees\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
OBSERVE, TASK, LOOK, ON, OFF = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("etc")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    path = folder / "affinityd.conf"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def it(conf: Path, release: str) -> Iterator[Node]:
    """Run a node whose site writes this file."""
    binds = {conf: "/etc/affinityd.conf"}
    with node(Setup(task_plugin="task/affinity", binds=binds, release=release)) as made:
        yield made


def samples(daemon: Daemon, name: str) -> dict[str, float]:
    lines = daemon.get("/metrics").text.splitlines()
    rows = (line.rpartition(" ") for line in lines if line.startswith(name))
    return {labels: float(value) for labels, _, value in rows}


OBSERVED = "affinityd_observed_plans_total"
REMOTE_TO_LOCAL = f'{OBSERVED}{{after="local",before="remote"}}'


@pytest.mark.parametrize(
    ("site", "job", "unpinned"),
    [
        ("", "observe", WOULD),
        ("AFFINITYD=on", "observe", WOULD),
        ("AFFINITYD=observe", None, WOULD),
        ("AFFINITYD=observe", "on", WOULD),
        ("AFFINITYD='Observe'", "", WOULD),
        ("AFFINITYD=observe", "off", ["AFFINITYD=off"] * 2),
        ("AFFINITYD=off", "on", ["AFFINITYD=off in /etc/affinityd.conf"] * 2),
        ("AFFINITYD=off", "observe", ["AFFINITYD=off in /etc/affinityd.conf"] * 2),
        ("AFFINITYD=off\nAFFINITYD=on", None, None),
        ("AFFINITYD=on", "yes", None),
        ("AFFINITYD=obs reve", None, [f"AFFINITYD in /etc/affinityd.conf {NO_WORD}"] * 2),
        ("", "obsreve", [f"AFFINITYD {NO_WORD}"] * 2),
    ],
)
def test_a_job_says_no_more_than_its_site(
    it: Node, conf: Path, site: str, job: str | None, unpinned: list[str] | None
) -> None:
    conf.write_text(f"{site}\n")
    tasks = it.tasks(*TWO, env={} if job is None else {"AFFINITYD": job})
    if unpinned is None:
        assert [(task.cpus, task.unpinned) for task in tasks] == [(it, None) for it in THEIRS]
        return
    assert [task.cpus for task in tasks] == SLICES
    assert [task.variables for task in tasks] == [{"UNPINNED": why} for why in unpinned]


def test_the_daemon_counts_what_a_pin_would_have_changed(it: Node, conf: Path) -> None:
    """Each task, though its question is another's before."""
    conf.write_text("AFFINITYD=observe\n")
    before = samples(it.daemon, OBSERVED).get(REMOTE_TO_LOCAL, 0)
    for _ in range(2):
        it.tasks(*TWO)
    assert samples(it.daemon, OBSERVED)[REMOTE_TO_LOCAL] == before + 4
    it.tasks("--ntasks=1", "--gres=gpu:small:1", "--cpus-per-task=2")
    assert samples(it.daemon, OBSERVED)[f'{OBSERVED}{{after="mixed",before="unpinned"}}'] == 1


def test_where_the_site_is_off_no_daemon_is_asked(it: Node, conf: Path) -> None:
    conf.write_text("AFFINITYD=off\n")
    before = samples(it.daemon, "affinityd_plans_total")
    it.tasks(*TWO, env={"AFFINITYD": "observe"})
    assert samples(it.daemon, "affinityd_plans_total") == before
    conf.write_text("")
    it.tasks(*TWO)
    assert samples(it.daemon, "affinityd_plans_total") != before


def test_a_task_without_gpus_is_told_nothing(it: Node, conf: Path) -> None:
    for word in ("off", "observe"):
        conf.write_text(f"AFFINITYD={word}\n")
        (task,) = it.tasks("--ntasks=1")
        assert (task.variables, task.rest) == ({}, [])


@pytest.mark.parametrize("word", ["observe", "off"])
def test_what_the_daemon_s_own_settings_say_counts_too(it: Node, conf: Path, word: str) -> None:
    socket = "/run/affinityd/other/affinityd.sock"
    conf.write_text(f"AFFINITYD=on\nAFFINITYD_SOCKET={socket}\n")
    machine = str(it.folder.with_name("machine"))
    with running(it.folder / "other", "--root", machine, env={"AFFINITYD": word}) as daemon:
        tasks = it.tasks(*TWO, env={"AFFINITYD": "on"})
        counted = samples(daemon, OBSERVED)
        log = "\n".join(daemon.lines)
    off = [f"AFFINITYD=off, as the daemon at {socket} has it"] * 2
    assert [task.cpus for task in tasks] == SLICES
    assert [task.unpinned for task in tasks] == (WOULD if word == "observe" else off)
    assert counted == ({REMOTE_TO_LOCAL: 2} if word == "observe" else {})
    assert f"AFFINITYD={word}: nothing is pinned on this node" in log


def test_the_page_s_commands_do_what_it_says(it: Node, conf: Path) -> None:
    """But for systemd's, which is not here, and with the rig's paths."""

    def done(commands: str) -> str:
        ours = commands.replace("systemctl restart affinityd", ":")
        ours = ours.replace("/etc/affinityd.conf", str(copy))
        ours = ours.replace("/run/affinityd", str(it.folder)).replace("affinityd enforce\n", "")
        return subprocess.check_output(["sh", "-ec", ours], text=True)

    copy = conf.with_name("copy")
    copy.write_text("# ours\nAFFINITYD_MODE=node\n")
    done(OBSERVE)
    conf.write_text(copy.read_text())
    printed = it.cluster.run(*("sh", "-c", TASK.replace("--gres=gpu:1", "--gres=gpu:small:1")))
    assert re.search(r"^Cpus_allowed_list:\t", printed, re.MULTILINE)
    assert re.search(r"^AFFINITYD_UNPINNED=observe: would run on CPUs \d", printed, re.MULTILINE)
    assert f"{OBSERVED}{{after=" in done(LOOK)
    ours = ("AFFINITYD_MODE=node", "AFFINITYD_ENFORCE=observe")
    for commands, word in ((ON, "on"), (OFF, "off"), (ON, "on")):
        done(commands)
        said = dict(line.split("=") for line in (*ours, f"AFFINITYD={word}"))
        assert file.read(f"{copy}") == said  # of a name that is there twice, the last counts
    conf.write_text(copy.read_text())
    assert [task.cpus for task in it.tasks(*TWO)] == THEIRS
    (query,) = re.findall(r"`(sinfo [^`]*)`", SECTION)
    assert it.cluster.run("sh", "-c", query.replace("PARTITION", "all")).strip()


@pytest.mark.parametrize("word", ["off", "observe"])
def test_a_node_without_a_daemon_is_not_drained_where_nothing_is_pinned(
    it: Node, conf: Path, word: str
) -> None:
    nobody = "AFFINITYD_SOCKET=/run/affinityd/nobody.sock"
    conf.write_text(f"AFFINITYD={word}\n{nobody}\nAFFINITYD_DRAIN=yes\n")
    assert [task.cpus for task in it.tasks(*TWO)] == SLICES
    assert "drain" not in it.cluster.run("sinfo", "-h", "-o", "%T")
