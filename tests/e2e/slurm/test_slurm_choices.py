"""What job, site and node say to the scripts, where the daemon is real; no Slurm needs to run."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.slurm.alone import JOB, SHELLS, Node, beside, said
from tests.e2e.slurm.node import GPU_NODES, MINORS, SCRIPTS
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.tiny import BOTH, FAR, tiny_tree

GPU = {"CUDA_VISIBLE_DEVICES": "1"}  #: near FAR
DEVICES = "nvidiactl nvidia0 nvidia1 nvidia2 nvidia3"
TWO_TASKS = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "0,1", "SLURM_LOCALID": "0"}
SOCKET = "/run/affinityd/affinityd.sock"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tree(tmp_path_factory.mktemp("machine"), *GPU_NODES, minors=MINORS)


@pytest.fixture(scope="module")
def daemon(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("node") / "run", "--root", f"{tree}") as daemon:
        yield daemon


@pytest.fixture
def it(daemon: Daemon) -> Node:
    """Return its node, where the job's prolog has noted its GPU."""
    note(daemon, "gpus=1\n")
    return Node(run=daemon.socket.parent, devices=DEVICES)


def note(daemon: Daemon, text: str) -> None:
    notes = daemon.socket.with_name("jobs")
    notes.mkdir(exist_ok=True)
    (notes / JOB["SLURM_JOB_ID"]).write_text(text)


def pinned(cpus: str, *more: str) -> tuple[str, str]:
    """Return what a task is told that has these CPUs, and the CPUs."""
    lines = (f"CPULIST={cpus}", "LOCALITY=local", f"ALLOWED={BOTH}", *more)
    return "".join(f"export AFFINITYD_{line}\n" for line in lines), cpus


def left(why: str) -> tuple[str, str]:
    """Return what a task is told that has not been pinned, and its CPUs."""
    return f"export AFFINITYD_UNPINNED={why}\n", BOTH


IDLE = "WARNINGS=idle_cpus"
NEAR_IT, ALL = pinned(FAR, "JOB_GPUS=1", IDLE), pinned(BOTH, "JOB_GPUS=1")
APART = pinned(FAR, "JOB_GPUS=1", f"{IDLE},share_unavailable")
OFF, WOULD = left("AFFINITYD=off"), left(f"observe: would run on CPUs {FAR} (local)")
NO_WORD = "is none of on, observe and off"
OF_SITE = "AFFINITYD=off in /etc/affinityd.conf"
MALFORMED = "Malformed request:"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("", "No", OFF),
        ("", "on", NEAR_IT),
        ("", "obsreve", left(f"AFFINITYD {NO_WORD}")),
        ("_MODE", "unique-interleaved", APART),
        ("_MODE", "", NEAR_IT),
        ("_MODE", "all&scope=socket", f"{MALFORMED} mode: 'all&scope=socket' is not one of all"),
        ("_MODE", "$(id)", f"{MALFORMED} mode: '$(id)' is not one of"),
        ("_SCOPE", "x" * 5000, f"{MALFORMED} scope: 'xxxxx"),
        ("_MIN_PHYSICAL_CORES", "2", "Cannot be satisfied: "),
        ("_SOCKET", "/nonexistent", left("no plan from /nonexistent")),
        ("_SOCKET", "--help", left("AFFINITYD_SOCKET=--help is not an absolute path")),
    ],
)
def test_a_user_chooses_by_the_job_s_environment(
    it: Node, name: str, text: str, expected: str | tuple[str, str]
) -> None:
    found = said(it, {**GPU, f"AFFINITYD{name}": text})
    if isinstance(expected, str):  # a refusal begins so
        assert (found[0].startswith(left(expected)[0][:-1]), found[1]) == (True, BOTH), found
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("site", "job", "expected"),
    [
        ("", "observe", WOULD),
        ("AFFINITYD='Observe'", "on", WOULD),
        ("AFFINITYD=observe", "off", OFF),
        ("AFFINITYD=off", "observe", left(OF_SITE)),
        ("AFFINITYD=off\nAFFINITYD=on", None, NEAR_IT),
        ("AFFINITYD=obs reve", None, left(f"AFFINITYD in /etc/affinityd.conf {NO_WORD}")),
    ],
)
def test_a_job_says_no_more_than_its_site(
    it: Node, site: str, job: str | None, expected: tuple[str, str]
) -> None:
    env = {} if job is None else {"AFFINITYD": job}
    assert said(replace(it, settings=site), {**GPU, **env}) == expected


def test_a_site_chooses_for_all_jobs_and_a_job_otherwise(it: Node) -> None:
    settings = "# ours\nAFFINITYD_MODE='all'\nAFFINITYD_SCOPE=\"socket\"\nOTHER=1\nPATH=/x"
    site_s = replace(it, settings=settings)
    assert said(site_s, GPU) == ALL
    assert said(site_s, {**GPU, "AFFINITYD_MODE": "node", "AFFINITYD_SCOPE": "node"}) == NEAR_IT


# Without a daemon.

#: /usr/bin/affinityd, as a site installs it.
COMMAND = """\
mkdir /run/bin
ln -s {} /run/bin/affinityd
{}
mount -t overlay -o lowerdir=/run/bin:/usr/bin overlay /usr/bin
"""
INSTALLED = Path(sys.executable).with_name("affinityd")
#: A busy machine is slow; what is held here is the answer.
PATIENT = """\
printf '#!/bin/sh\\nshift 3\\nexec "$@"\\n' >/run/bin/timeout
chmod 755 /run/bin/timeout
"""
#: The daemon's folder; beside its usual socket no replayed machine counts, as this one is.
FOLDER = "mkdir /run/other\nmount --bind /run/affinityd /run/other\n"
OTHER = "/run/other/affinityd.sock"
NONE = left(f"no plan from {OTHER}")


@pytest.fixture
def ended(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield a node whose daemon was killed: its socket and its node.json are still there."""
    run = tmp_path_factory.mktemp("ended") / "run"
    with running(run, "--root", f"{tree}") as daemon:
        note(daemon, "gpus=1\n")
        daemon.process.kill()
        daemon.process.wait()
        more = FOLDER + COMMAND.format(INSTALLED, PATIENT)
        yield Node(run=run, devices=DEVICES, more=more, settings=f"AFFINITYD_SOCKET={OTHER}")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_task_is_planned_from_the_node_json_that_a_daemon_left(ended: Node, shell: str) -> None:
    run = ended.run
    assert run
    it = replace(ended, shell=shell)
    assert (run / "affinityd.sock").is_socket()
    assert said(it, GPU) == NEAR_IT
    assert said(it, {**GPU, "AFFINITYD": "observe"}) == WOULD
    assert said(it, {**GPU, "AFFINITYD_MODE": "x"})[0].startswith(
        left(f"{MALFORMED} mode: ")[0][:-1]
    )
    (run / "affinityd.sock").unlink()  # as a daemon that was stopped leaves it
    assert said(it, GPU) == NEAR_IT
    assert "which was replayed" in said(replace(it, settings=""), GPU)[0]
    assert said(replace(it, more=FOLDER), GPU) == NONE  # affinityd is not installed there
    file = run / "node.json"
    file.unlink()
    assert said(it, GPU) == NONE


def test_a_command_that_hangs_ends_with_the_task_s_time(ended: Node) -> None:
    hanging = FOLDER + COMMAND.format("/usr/bin/yes", "")
    assert said(replace(ended, more=hanging), GPU) == NONE


# A job's note.


def test_gpus_of_a_note_that_are_not_the_task_s_do_not_count(it: Node, daemon: Daemon) -> None:
    """As where gres.conf names GPUs in another order than the node's."""
    note(daemon, "gpus=0\n")
    assert said(it, GPU) == pinned(FAR, IDLE)


@pytest.mark.parametrize("text", ["gpus=$(id)", "x" * 100_000], ids=len)
def test_a_note_that_is_no_note_is_passed_over(it: Node, daemon: Daemon, text: str) -> None:
    """In a unique mode nothing else keeps tasks apart where cores are fewer than GPUs."""
    note(daemon, text)
    assert said(it, GPU) == pinned(FAR, IDLE)
    unique, _ = said(it, {**GPU, **TWO_TASKS, "AFFINITYD_MODE": "exclusive"})
    assert "AFFINITYD_WARNINGS=not_unique" in unique


# The prolog, whose status other than 0 has Slurm drain the node.


@pytest.mark.parametrize(
    ("settings", "status", "tells"),
    [
        ("", 0, True),
        ('AFFINITYD_DRAIN="yes"', 1, True),
        ("AFFINITYD=observe\nAFFINITYD_DRAIN=yes", 0, False),
    ],
)
def test_a_node_without_a_daemon_is_drained_only_where_the_site_says_so(
    tmp_path: Path, settings: str, status: int, *, tells: bool
) -> None:
    line = f"affinityd: no daemon is ready at {SOCKET}: "
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog, beside(None) as folder:
        syslog.bind(f"{tmp_path}/log")
        node = Node(run=folder, settings=settings, log=tmp_path / "log")
        done = node.run_script("prolog.sh", {**JOB, **GPU})
        assert (folder / "jobs/1").read_text() == "gpus=1\n"
        assert (done.status, done.stderr[: len(line)]) == (status, line if tells else "")
        if tells:
            syslog.settimeout(PATIENCE)
            assert line in syslog.recv(4096).decode()


def test_a_prolog_that_is_linked_into_a_folder_of_prologs_finds_the_daemon(it: Node) -> None:
    link = f"ln -s {SCRIPTS}/prolog.sh /run/50-affinityd"
    linked = replace(it, settings="AFFINITYD_DRAIN=yes", more=link)
    done = linked.run_script("/run/50-affinityd", {**JOB, **GPU})
    assert (done.status, done.stderr) == (0, "")


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "12x"])
def test_a_prolog_without_a_job_touches_nothing(job: str) -> None:
    with beside(None) as folder:
        done = Node(run=folder).run_script("prolog.sh", {"SLURM_JOB_ID": job, **GPU})
        assert [*folder.iterdir()] == []
    line = f"affinityd: SLURM_JOB_ID={job} is not a job; Prolog= of slurm.conf runs this"
    assert (done.status, done.lines) == (0, [line])
