"""This process: what it asks for, and how it takes its place. Each is a real process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from affinityd.client import apply
from affinityd.client.find_plan import ProcessPlan
from affinityd.client.process_context import granted_gpus
from affinityd.cpuset import format_list, parse_list
from tests.support.cpusets import cpuset, needs_cpuset

CPUS = sorted(os.sched_getaffinity(0))
FIRST = str(CPUS[0])
ALL = format_list(CPUS)
RANK = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
ONE = {"CUDA_VISIBLE_DEVICES": "2"}
#: What is asked by every process here that nothing else is known of.
HERE = {"mode": "node", "cpuset": ALL, **({"granted": it} if (it := granted_gpus()) else {})}

#: Prints the requests of the process that it runs in.
ASK = (
    "import json; from affinityd.client.apply import own_questions;"
    "print(json.dumps(own_questions({given})))"
)

#: Takes a place once it is in its cgroup, and prints what came of it.
PIN = """
import os, sys
from affinityd.client import apply
from affinityd.cpuset import parse_list
sys.stdin.readline()
try: print(sorted(apply.set_own_mask(parse_list(sys.argv[1]))), flush=True)
except apply.ApplyError as error: print(error, flush=True)
print(sorted(os.sched_getaffinity(0)))
"""


def run(
    code: str, *words: str, env: Mapping[str, str] | None = None, by: Sequence[str] = ()
) -> str:
    """Return what Python code prints, started by way of a command."""
    return subprocess.run(
        [*by, sys.executable, "-c", code, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
        input="go\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout


def asked(env: Mapping[str, str], by: Sequence[str] = (), **given: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(run(ASK.format(given=given), env=env, by=by))


#: A shell whose own environment has what its child inherits, and one that has not.
SHELL = ("sh", "-c", '"$@"; exit $?', "sh")
WRAPPER = ("sh", "-c", 'export CUDA_VISIBLE_DEVICES=2; "$@"; exit $?', "sh")


def test_the_requests_are_about_the_cpus_that_it_runs_on() -> None:
    assert asked({}) == [HERE]
    assert asked({}, by=["taskset", "-c", FIRST]) == [{**HERE, "cpuset": FIRST}]


def test_the_requests_are_of_its_rank_and_its_devices() -> None:
    assert asked({**RANK, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == [
        {**HERE, "visible": "0,1,2,3", "ranks": "4", "rank": "1"}
    ]


def test_what_is_chosen_counts() -> None:
    assert asked(RANK, mode="even", cpuset="5", visible="", granted="1") == [
        {"mode": "even", "cpuset": "5", "visible": "", "granted": "1", "ranks": "4", "rank": "1"}
    ]


@pytest.mark.parametrize(
    ("by", "env", "expected"),
    [
        pytest.param(SHELL, ONE, {"ranks": "4", "rank": "1"}, id="inherited: the siblings', too"),
        pytest.param(WRAPPER, {}, {"share": "node"}, id="set by its parent: its own"),
    ],
)
def test_devices_are_its_own_where_its_parent_was_started_without_them(
    by: Sequence[str], env: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    (question,) = asked({**RANK, **env}, by=by, mode="exclusive")
    assert question == {**HERE, "mode": "exclusive", "visible": "2", **expected}


def test_a_mask_that_was_set_before_does_not_shrink_what_is_asked_for() -> None:
    pinned = {"AFFINITYD_CPULIST": FIRST, "AFFINITYD_ALLOWED": ALL}
    assert asked(pinned, by=["taskset", "-c", FIRST])[0]["cpuset"] == ALL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_the_devices_that_it_may_open_are_in_each_request(tmp_path: Path) -> None:
    (tmp_path / "null").touch()
    for minor in (0, 3):
        os.mknod(tmp_path / f"nvidia{minor}", stat.S_IFCHR, os.makedev(240, minor))
    own_dev = ("unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path} /dev; "$@"', "sh")
    (question,) = asked(RANK, by=own_dev)
    assert question["granted"] == "minor:0,minor:3"
    (question,) = asked(RANK, by=own_dev, granted="minor:7")
    assert question["granted"] == "minor:7"


# Taking its place.


def test_the_mask_is_set_and_read_back() -> None:
    assert run(PIN, FIRST) == f"[{FIRST}]\n[{FIRST}]\n"


def test_only_the_calling_thread_is_moved() -> None:
    code = f"""
import os, threading
from affinityd.client import apply
thread = threading.Thread(target=lambda: print(sorted(apply.set_own_mask(frozenset({{{FIRST}}})))))
thread.start(); thread.join()
print(sorted(os.sched_getaffinity(0)))"""
    assert run(code) == f"[{FIRST}]\n{CPUS}\n"


def in_cpuset(wanted: str) -> list[str]:
    """Return what a process says that is in a cpuset of the first CPU alone."""
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(FIRST)
        with subprocess.Popen(
            [sys.executable, "-c", PIN, wanted],
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            (group / "cgroup.procs").write_text(str(child.pid))
            return child.communicate("go\n", timeout=30)[0].splitlines()


@needs_cpuset
def test_what_the_cpuset_does_not_allow_is_cut_off_and_told() -> None:
    assert in_cpuset(ALL) == [f"[{FIRST}]"] * 2


LINES = {
    "AFFINITYD_CPULIST": "4-7",
    "AFFINITYD_ALLOWED": "0-9",
    "AFFINITYD_LOCALITY": "local",
    "AFFINITYD_MEMORY_NODES": "",
    "AFFINITYD_THREADS": "4",
}


@pytest.mark.parametrize(
    ("changed", "cpus", "environ", "remarks"),
    [
        ({}, "4-7", {}, []),
        ({}, "4-5", {}, ["CPUs 4-7 were cut down to 4-5: the cpuset has no more"]),
        ({"LOCALITY": "remote"}, "4-7", {}, ["CPUs 4-7 are not near the GPU; allowed are 0-9"]),
        ({"LOCALITY": "unknown", "WARNINGS": "unknown_locality,shared_gpu"}, "4-7", {}, []),
        ({"WARNINGS": "share_unavailable"}, "4-7", {}, [apply.REMARKS["share_unavailable"]]),
        ({"WARNINGS": "ambiguous_index"}, "4-7", {}, [apply.REMARKS["ambiguous_index"]]),
        ({"WARNINGS": "ambiguous_index"}, "4-7", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, []),
    ],
)
def test_what_is_not_as_it_should_be_is_remarked(
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    cpus: str,
    environ: dict[str, str],
    remarks: list[str],
) -> None:
    for name, text in {"CUDA_DEVICE_ORDER": "", **environ}.items():
        monkeypatch.setenv(name, text)
    for name in ("CPULIST", "ALLOWED", "LOCALITY"):
        monkeypatch.setenv(f"AFFINITYD_{name}", "")  # so that it is taken back at the end
    found = ProcessPlan(
        {**LINES, **{f"AFFINITYD_{name}": it for name, it in changed.items()}}, "daemon"
    )
    monkeypatch.setattr(apply, "set_own_mask", lambda _cpus: parse_list(cpus))
    *_, told = apply.apply_plan(found, None)
    assert told == [*remarks]


def test_trouble_with_a_daemon_is_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPULIST", "ALLOWED", "LOCALITY"):
        monkeypatch.setenv(f"AFFINITYD_{name}", "")
    found = ProcessPlan(LINES, "sysfs", "the daemon hangs")
    monkeypatch.setattr(apply, "set_own_mask", lambda cpus: cpus)
    *_, told = apply.apply_plan(found, None)
    assert told == ["the daemon hangs; planned from sysfs"]


@needs_cpuset
def test_where_nothing_would_be_left_the_mask_stays_and_that_is_told() -> None:
    beyond = str(CPUS[1])
    assert in_cpuset(beyond) == [
        f"CPUs {beyond} were refused: Invalid argument; the cpuset may hold none of them",
        f"[{FIRST}]",
    ]


@pytest.mark.parametrize("cpus", ["8191", "65535"])
def test_a_cpu_that_no_machine_has_is_refused(cpus: str) -> None:
    assert run(PIN, cpus).splitlines() == [
        f"CPUs {cpus} were refused: Invalid argument; the cpuset may hold none of them",
        str(CPUS),
    ]


def test_children_are_told_where_they_are_and_on_what_that_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CPULIST", "ALLOWED", "LOCALITY"):
        monkeypatch.setenv(f"AFFINITYD_{name}", "of an earlier pin")
    found = ProcessPlan({**LINES, "AFFINITYD_LOCALITY": "remote"}, "daemon")
    monkeypatch.setattr(apply, "set_own_mask", lambda _cpus: parse_list("4-5"))
    assert apply.apply_plan(found, None)[0] == parse_list("4-5")
    told = subprocess.check_output(["env"], text=True).splitlines()
    assert {line for line in told if line.startswith("AFFINITYD_")} >= {
        "AFFINITYD_CPULIST=4-5",
        "AFFINITYD_ALLOWED=0-9",
        "AFFINITYD_LOCALITY=remote",
    }
