"""`affinityd.bind`, `set_affinity` and `worker_init_fn`, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import affinityd
from affinityd.planner.modes import MODES
from affinityd.request.parameters import PARAMETERS
from tests.support.tiny import BOTH, CPUS, FAR, NEAR, tiny_tree

CPU = {NEAR: [int(NEAR)], FAR: [int(FAR)]}

PREPARE = """
import json, os, sys, threading, time
import affinityd
def mask(tid=0): return sorted(os.sched_getaffinity(tid))
def say(**facts): print(json.dumps(facts, default=str))
"""


def python(code: str, env: Mapping[str, str]) -> Any:  # noqa: ANN401 - what it says
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + code],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "AFFINITYD_CONFIG": "/nonexistent", **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_a_process_is_bound_beside_its_gpu_and_knows_it(here: Mapping[str, str]) -> None:
    said = python(
        "b = affinityd.bind(memory='bind'); say(cpus=sorted(b.cpus), mask=mask(), source=b.source,"
        " locality=b.locality, pinned=b.pinned, memory=b.memory.policy,"
        " nodes=sorted(b.memory.nodes), warnings=b.warnings, env=os.environ['AFFINITYD_CPULIST'])",
        {**here, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    )
    assert said == {
        "cpus": CPU[NEAR],
        "mask": CPU[NEAR],
        "source": "daemon",
        "locality": "local",
        "pinned": True,
        "memory": "bind",
        "nodes": [0],
        "warnings": [],
        "env": NEAR,
        "stderr": "",
    }


@pytest.mark.parametrize(
    ("said", "cpus"),
    [
        ({}, f"{sorted(CPUS)}"),
        ({"AFFINITYD_MODE": "single_unique"}, "None"),
        ({"AFFINITYD_MODE": "no-such-mode"}, "None"),
    ],
    ids=["by default all near CPUs", "the same", "a mode that is none"],
)
def test_what_exec_would_give_is_said_where_it_differs(
    tmp_path: Path, said: dict[str, str], cpus: str
) -> None:
    machine = tiny_tree(tmp_path, 0, 0)
    (machine / "sys/devices/system/node/node0/cpulist").write_text(BOTH)
    env = {"AFFINITYD_SOCKET": "/nonexistent", "AFFINITYD_ROOT": str(machine)}
    bound = python(
        "b = affinityd.bind(); say(cpus=sorted(b.cpus),"
        " exec=str(b.exec_cpus and sorted(b.exec_cpus)), warnings=b.warnings)",
        {**env, **said, "LOCAL_RANK": "1"},
    )
    assert bound == {"cpus": CPU[FAR], "exec": cpus, "warnings": [], "stderr": ""}


def test_threads_that_run_already_are_bound_too_and_later_ones_inherit(
    here: Mapping[str, str],
) -> None:
    said = python(
        "e = threading.Event()\n"
        "old = [threading.Thread(target=e.wait) for _ in range(8)]\n"
        "[t.start() for t in old]\n"
        "affinityd.bind(1)\n"
        "new = threading.Thread(target=e.wait); new.start()\n"
        "say(masks=[mask(int(t)) for t in os.listdir('/proc/self/task')]); e.set()",
        here,
    )
    assert said["masks"] == [CPU[FAR]] * 10


def test_a_second_call_is_no_error_and_changes_nothing(here: Mapping[str, str]) -> None:
    said = python(
        "a = affinityd.bind(1); b = affinityd.bind(1); c = affinityd.bind(0);"
        "say(a=sorted(a.cpus), b=sorted(b.cpus), c=sorted(c.cpus), pinned=b.pinned)",
        here,
    )
    assert (said["a"], said["b"], said["c"]) == (CPU[FAR], CPU[FAR], CPU[NEAR])
    assert said["pinned"]


def test_bind_called_in_a_thread_binds_that_thread(here: Mapping[str, str]) -> None:
    said = python(
        "def work():\n"
        f"    os.sched_setaffinity(0, {{{NEAR}}})\n"
        "    affinityd.bind(1); say(mask=mask())\n"
        "t = threading.Thread(target=work); t.start(); t.join()",
        here,
    )
    assert said["mask"] == CPU[FAR]


def test_without_a_plan_the_process_stays_as_it_is_and_is_warned(here: Mapping[str, str]) -> None:
    said = python(
        "before = mask(); b = affinityd.bind(gpus='9');"
        "say(same=mask() == before == sorted(b.cpus), pinned=b.pinned, locality=b.locality,"
        " warnings=b.warnings)",
        here,
    )
    line = "no GPU 9; visible are 0 (0000:10:00.0), 1 (0000:11:00.0)"
    assert said == {
        "same": True,
        "pinned": False,
        "locality": None,
        "warnings": [line],
        "stderr": f"affinityd: {line}\n",
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("affinityd.bind(gpus='9', fail_closed=True)", "no GPU 9; visible are"),
        ("affinityd.bind(memory='near', fail_closed=True)", "memory: 'near' is not one of local"),
        ("affinityd.bind(mode='fast', fail_closed=True)", "mode: 'fast' is not one of all"),
        (
            "affinityd.set_affinity(2, 2)",
            "gpu_id=2 is not from 0 to nproc_per_node - 1",
        ),
        ("affinityd.set_affinity(-1, 2)", "gpu_id=-1 is not from 0"),
        ("affinityd.set_affinity(0, 2, min_physical_cores=2)", "rank 0"),
        ("affinityd.set_affinity(2, 3)", "no GPU 2; visible are"),
        ("affinityd.set_affinity(0, 10**9)", "nproc_per_node=1000000000 is too many"),
    ],
)
def test_who_asks_for_errors_gets_them(here: Mapping[str, str], call: str, message: str) -> None:
    said = python(
        f"try:\n    {call}\nexcept affinityd.GPUAffinityError as error:\n    say(error=error)", here
    )
    assert message in said["error"]


def test_opted_out_it_does_nothing(here: Mapping[str, str]) -> None:
    said = python(
        "before = mask(); b = affinityd.bind(1); s = affinityd.set_affinity(1, 2);"
        "say(same=mask() == before == sorted(b.cpus) == sorted(s), pinned=b.pinned)",
        {**here, "AFFINITYD": "off"},
    )
    assert said == {"same": True, "pinned": False, "stderr": ""}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("affinityd.bind(1)", f"observe: would run on CPUs {FAR} (local)"),
        ("affinityd.bind(1, fail_closed=True)", f"observe: would run on CPUs {FAR} (local)"),
        ("affinityd.bind(gpus='9', fail_closed=True)", "no GPU 9; visible are "),
        ("affinityd.set_affinity(1, 2)", f"observe: would run on CPUs {FAR} (local)"),
    ],
)
def test_observing_it_says_to_its_children_where_it_would_be(
    here: Mapping[str, str], call: str, told: str
) -> None:
    said = python(
        f"before = mask(); b = {call}; b = getattr(b, 'cpus', b);"
        "say(same=mask() == before == sorted(b), told=os.environ['AFFINITYD_UNPINNED'])",
        {**here, "AFFINITYD": "observe"},
    )
    assert said.pop("told").startswith(told)
    assert said == {"same": True, "stderr": ""}


def test_nvidia_s_call_moves_over_by_one_line(here: Mapping[str, str]) -> None:
    said = python(
        "import affinityd as gpu_affinity\n"
        "cpus = gpu_affinity.set_affinity(1, 2, mode=gpu_affinity.Mode.UNIQUE_CONTIGUOUS,"
        " scope=gpu_affinity.Scope.SOCKET,"
        " multithreading=gpu_affinity.Multithreading.SINGLE_LOGICAL, balanced=False,"
        " min_physical_cores=1, max_physical_cores=1)\n"
        "say(kind=type(cpus).__name__, cpus=sorted(cpus), mask=mask())",
        {**here, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    )
    assert said == {"kind": "set", "cpus": CPU[FAR], "mask": CPU[FAR], "stderr": ""}


WORKER = """
before = mask()
{bound}
if os.fork() == 0:
    os.sched_setaffinity(0, before)
    affinityd.worker_init_fn(3)
    say(mask=mask()); sys.stdout.flush(); os._exit(0)
os.wait()
"""


def test_a_worker_gets_its_training_process_s_cpus_back(here: Mapping[str, str]) -> None:
    assert python(WORKER.format(bound="affinityd.bind(1)"), here)["mask"] == CPU[FAR]


@pytest.mark.parametrize(
    "env",
    [{}, {"AFFINITYD_CPULIST": FAR}, {"AFFINITYD": "off"}, {"AFFINITYD": "observe"}],
    ids=["nobody was bound", "a variable of another job's shell", "opted out", "observed"],
)
def test_a_worker_of_nobody_stays_where_it_is(here: Mapping[str, str], env: dict[str, str]) -> None:
    bound = "affinityd.bind(1)" if "AFFINITYD" in env else ""
    assert python(WORKER.format(bound=bound), {**here, **env})["mask"] == sorted(CPUS)


def test_a_worker_that_is_told_nonsense_says_so() -> None:
    said = python("affinityd.worker_init_fn(0); say()", {"AFFINITYD_CPULIST": "x"})
    assert "DataLoader worker 0 stays unpinned: 'x' is not a CPU number" in said["stderr"]


@pytest.mark.parametrize("gpus", ["1", "'1'", "[1]", "('1',)"])
def test_gpus_are_named_in_any_form(here: Mapping[str, str], gpus: str) -> None:
    assert python(f"affinityd.bind(gpus={gpus}); say(mask=mask())", here)["mask"] == CPU[FAR]


def test_names_are_those_of_a_plan() -> None:
    assert {str(mode) for mode in affinityd.Mode} == {*MODES}
    for choice, name in ((affinityd.Scope, "scope"), (affinityd.Multithreading, "multithreading")):
        assert {str(member) for member in choice} == {*PARAMETERS[name].schema["enum"]}


def test_what_is_not_there_is_an_attribute_error() -> None:
    assert {*affinityd.__all__} <= {*dir(affinityd)}
    assert all(hasattr(affinityd, name) for name in affinityd.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'blind'"):
        affinityd.blind  # noqa: B018


def test_the_package_imports_nothing_until_it_is_asked() -> None:
    code = "import sys; b = {*sys.modules}; import affinityd; print(*{*sys.modules} - b)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} <= {"affinityd", "__future__"}
