"""A real process's facts, its query for a plan, and how a plan is applied to the process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from affinityd.client import apply
from affinityd.client.process import ProcessContext, granted_gpus
from affinityd.client.remarks import REMARKS
from affinityd.cpuset import format_list, parse_list
from affinityd.request.process_plan import read_plan
from tests.support.children import present, program
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import PATIENCE

CPUS = sorted(os.sched_getaffinity(0))
FIRST = str(CPUS[0])
ALL = format_list(CPUS)
REFUSED = "were refused: Invalid argument; the cpuset may hold none of them"

#: Prints the query of the process that runs this code.
ASK = (
    "import json, sys; from affinityd.client.process import ProcessContext;"
    "process = ProcessContext.of_self();"
    "print(json.dumps(process.query(json.loads(sys.argv[1]), process.mask)))"
)
#: Sets a thread's mask; prints the result, the thread's mask, and the main thread's mask.
PIN = """
import os, sys, threading
from affinityd.client import apply
from affinityd.cpuset import parse_list
sys.stdin.readline()
def pin():
    try: print(sorted(apply.set_own_mask(parse_list(sys.argv[1]))), flush=True)
    except apply.ApplyError as error: print(error, flush=True)
    print(sorted(os.sched_getaffinity(0)), flush=True)
thread = threading.Thread(target=pin)
thread.start(); thread.join()
print(sorted(os.sched_getaffinity(0)))
"""


def run(code: str, word: str, env: Mapping[str, str], before: Sequence[str] = ()) -> str:
    return subprocess.check_output(
        [*before, sys.executable, "-c", code, word],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **env},
        input="go\n",
        text=True,
    )


def asked(
    env: Mapping[str, str], before: Sequence[str] = (), **given: str
) -> tuple[dict[str, str], list[str]]:
    query = json.loads(run(ASK, json.dumps(given), env, before))
    parameters = {name: text for name, text in query if name != "env"}
    return parameters, [text for name, text in query if name == "env"]


def pinned(cpus: str, before: Sequence[str] = ()) -> list[str]:
    """Return the results of a pin: what is reported, the thread's mask, the process's mask."""
    return run(PIN, cpus, {}, before).splitlines()


#: The query of a process on this machine of which nothing else is known.
HERE = {"cpuset": ALL, **({"granted": it} if (it := granted_gpus()) else {})}
RANK = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
ON_FIRST = ("taskset", "-c", FIRST)
TOLD = [f"{name}={text}" for name, text in RANK.items()]
#: A launcher whose own environment has the rank's variables; its rank inherits them.
LAUNCHER = ("sh", "-c", f'{" ".join(TOLD)} "$@"; exit $?', "sh")
SEES_ONE = {"CUDA_VISIBLE_DEVICES": "2"}
BY_LIST = ["CUDA_VISIBLE_DEVICES=2"]
PINNED = {"AFFINITYD_CPULIST": FIRST, "AFFINITYD_ALLOWED": ALL}
BY_PIN = [f"{name}={text}" for name, text in PINNED.items()]
CHOSEN = {"mode": "even", "cpuset": "5", "visible": "", "granted": "1"}
MAY_USE_ALL = f"AFFINITYD_ALLOWED={ALL}"
EXCLUSIVE = {"mode": "exclusive"}


@pytest.mark.parametrize(
    ("before", "env", "given", "expected", "variables"),
    [
        (ON_FIRST, {}, {}, {"cpuset": FIRST}, [f"AFFINITYD_ALLOWED={FIRST}"]),
        (ON_FIRST, PINNED, {}, {"cpuset": FIRST}, BY_PIN),
        ((), RANK, CHOSEN, CHOSEN, TOLD),
        (LAUNCHER, SEES_ONE, EXCLUSIVE, EXCLUSIVE, [*TOLD, MAY_USE_ALL, *BY_LIST]),
        ((*LAUNCHER, *ON_FIRST), {}, {}, {"cpuset": FIRST}, [*TOLD, f"AFFINITYD_SLICE={FIRST}"]),
    ],
    ids=[
        "the process's mask",
        "a mask that an earlier pin set",
        "parameters that the caller states",
        "a process that sees a single GPU",
        "a mask that is narrower than the launcher's",
    ],
)
def test_a_query_has_the_process_s_own_facts(
    *,
    before: Sequence[str],
    env: Mapping[str, str],
    given: Mapping[str, str],
    expected: Mapping[str, str],
    variables: list[str],
) -> None:
    assert asked(env, before, **given) == ({**HERE, **expected}, variables)


# Setting a thread's mask.


def test_the_mask_of_the_calling_thread_alone_is_set_and_read_back() -> None:
    assert pinned(FIRST) == [f"[{FIRST}]", f"[{FIRST}]", str(CPUS)]


@needs_cpuset
def test_a_mask_is_cut_to_the_cpuset_or_refused() -> None:
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(FIRST)
        enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        assert pinned(ALL, enter) == [f"[{FIRST}]"] * 3
        assert pinned(str(CPUS[1]), enter)[0] == f"CPUs {CPUS[1]} {REFUSED}"


#: Sets the mask that the process already has, and then lets the process's cpuset grow.
GROWS = f"""
import os, pathlib, sys
from affinityd.client import apply
apply.set_own_mask(frozenset(os.sched_getaffinity(0)))
pathlib.Path(sys.argv[1]).write_text("{ALL}")
print(sorted(os.sched_getaffinity(0)))
"""


@needs_cpuset
def test_a_mask_that_is_not_narrowed_follows_a_cpuset_that_grows() -> None:
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(FIRST)
        enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        assert run(GROWS, f"{group}/cpuset.cpus", {}, enter) == f"{CPUS}\n"


# Applying a plan.

UNKNOWN = ProcessContext(os.getpid(), 0, None, devices=None)


@pytest.mark.parametrize(
    ("line", "cpus", "trouble", "remarks"),
    [
        ("", "4-5", None, ["CPUs 4-7 were cut down to 4-5: the cpuset has no more"]),
        ("LOCALITY=remote", "4-7", None, ["CPUs 4-7 are not near the GPU; allowed are 0-9"]),
        ("WARNINGS=unknown_locality,shared_gpu", "4-7", None, []),
        ("WARNINGS=share_unavailable", "4-7", None, [REMARKS["share_unavailable"]]),
        ("WARNINGS=slow_cores", "4-7", None, [REMARKS["slow_cores"]]),
        ("WARNINGS=ambiguous_index", "4-7", None, [REMARKS["ambiguous_index"]]),
        ("", "4-7", "the daemon hangs", ["the daemon hangs; planned from sysfs"]),
    ],
)
def test_children_have_the_plan_in_variables_and_deviations_are_remarks(
    monkeypatch: pytest.MonkeyPatch,
    *,
    line: str,
    cpus: str,
    trouble: str | None,
    remarks: list[str],
) -> None:
    lines = {"CPULIST": "4-7", "ALLOWED": "0-9", "LOCALITY": "local", "MEMORY_NODES": ""}
    lines |= {"THREADS": "4", **dict([line.split("=")] if line else [])}
    for name in ("CPULIST", "ALLOWED", "LOCALITY", "UNPINNED", "PINNED_FOR"):
        monkeypatch.setenv(f"AFFINITYD_{name}", "of an earlier pin")
    monkeypatch.setattr(apply, "set_own_mask", lambda _cpus: parse_list(cpus))
    text = "".join(f"AFFINITYD_{name}={value}\n" for name, value in lines.items())
    plan = read_plan(text)
    plan.source, plan.trouble = "sysfs", trouble
    applied = apply.apply_plan(plan, UNKNOWN, {}, {}, policy=None, libraries=None)
    assert applied == (parse_list(cpus), None, remarks)
    told = subprocess.check_output(["env"], text=True).splitlines()
    ours = ("AFFINITYD_CPU", "AFFINITYD_A", "AFFINITYD_L", "AFFINITYD_U")
    assert {it for it in told if it.startswith(ours)} == {
        f"AFFINITYD_CPULIST={cpus}",
        "AFFINITYD_ALLOWED=0-9",
        f"AFFINITYD_LOCALITY={lines['LOCALITY']}",
    }


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root unmounts and changes its root")


@pytest.mark.parametrize("step", ["", "0"])
def test_the_cpus_that_an_earlier_pin_was_planned_on_are_cut_to_the_cpuset(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    own = ProcessContext.of_self()
    assert own.cpuset is not None
    monkeypatch.setenv("AFFINITYD_CPULIST", format_list(own.mask))
    monkeypatch.setenv("AFFINITYD_ALLOWED", "0-999")
    if step:
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        monkeypatch.setenv("SLURM_STEP_ID", step)
    query = ProcessContext.of_self().query({}, own.mask)
    assert ("env", f"AFFINITYD_ALLOWED={format_list(own.cpuset)}") in query


IN_A_CONTAINER = """
import os, sys
os.chroot(sys.argv[1])
print("ready", flush=True)
input()
"""


@as_root
def test_another_process_is_described_by_its_own_environment_dev_and_parent(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia2").touch()
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    with program(IN_A_CONTAINER, f"{tmp_path}", env=environ) as child:
        found = ProcessContext.of(present(child.pid))
        assert (found.pid, {*found.mask}) == (child.pid, os.sched_getaffinity(0))
    assert found.environ == environ
    query = found.query({"mode": "even"}, frozenset({4}))
    listed = ("env", "CUDA_VISIBLE_DEVICES=1")
    assert {listed, ("granted", "minor:2"), ("mode", "even")} <= {*query}


def test_a_parent_whose_environment_is_not_read_in_time_counts_as_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "affinityd.client.process.environment_of", lambda _pid: time.sleep(PATIENCE)
    )
    environ = {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "2"}
    process = ProcessContext(0, 1, environ, devices=None)
    began = time.monotonic()
    assert "rank" not in dict(process.query({}, frozenset({0})))
    assert time.monotonic() - began < PATIENCE / 2
