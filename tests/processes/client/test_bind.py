"""`affinityd.bind`, `set_affinity` and `worker_init_fn`, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

import affinityd
from affinityd.client.bind import ModeName
from affinityd.planner.modes import MODES
from affinityd.request.parameters import PARAMETERS
from affinityd.request.process_plan import REPLAYED_MACHINE
from tests.support.tiny import BOTH, CPUS, FAR, NEAR, tiny_tree, without_replay

CPU = {NEAR: [int(NEAR)], FAR: [int(FAR)]}
NO_GPU = "no GPU 9; visible are 0 (0000:10:00.0), 1 (0000:11:00.0)"

PREPARE = """
import json, os, sys, threading
import affinityd
def mask(tid=0): return sorted(os.sched_getaffinity(tid))
def say(*facts): print(json.dumps(facts, default=str)); sys.stdout.flush()
"""


def python(code: str, env: Mapping[str, str]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + code],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "AFFINITYD_CONFIG": "/nonexistent", **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    stderr = without_replay(done.stderr)
    return [*json.loads(done.stdout), *([stderr] if stderr else [])]


BINDING = (
    "sorted(b.cpus), mask(), os.environ.get('AFFINITYD_CPULIST'), b.memory.policy, "
    "[*b.memory.nodes], b.source, b.locality, b.pinned, b.warnings"
)


def test_a_process_is_pinned_near_its_gpu(here: Mapping[str, str]) -> None:
    rank = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    said = python(f"b = affinityd.bind(memory='bind'); say({BINDING})", {**here, **rank})
    assert said == [
        CPU[NEAR],
        CPU[NEAR],
        NEAR,
        "bind",
        [0],
        "daemon",
        "local",
        True,
        [REPLAYED_MACHINE],
    ]


SAY_PLAN = (
    "p = affinityd.plan(gpus=[1], mode=affinityd.Mode.NODE); (rank,) = p.ranks\n"
    "say(rank.cpulist, rank.gpu.index, p.request.mode, mask())"
)


@pytest.mark.parametrize("has_daemon", [True, False])
def test_a_plan_is_returned_and_nothing_is_changed(
    here: Mapping[str, str], tmp_path: Path, *, has_daemon: bool
) -> None:
    machine = os.fspath(tiny_tree(tmp_path, 0, 1))
    alone = {"AFFINITYD_SOCKET": "/nonexistent", "AFFINITYD_ROOT": machine}
    own = sorted(os.sched_getaffinity(0))
    assert python(SAY_PLAN, here if has_daemon else alone) == [FAR, 1, "node", own]
    code = "try: affinityd.plan(gpus=9)\nexcept affinityd.AffinityError as e: say(str(e))"
    assert python(code, here) == [NO_GPU]


def test_without_a_plan_the_process_is_unchanged_and_warned(here: Mapping[str, str]) -> None:
    *said, stderr = python(f"b = affinityd.bind(gpus='9'); say({BINDING})", here)
    own = sorted(os.sched_getaffinity(0))
    assert said == [own, own, None, "default", [], None, None, False, [NO_GPU]]
    assert stderr == f"affinityd: {NO_GPU}\n"


def test_on_another_system_than_linux_an_error_says_so(here: Mapping[str, str]) -> None:
    elsewhere = (
        "sys.platform, sys.modules['pwd'] = 'win32', None\n"
        "del os.sched_getaffinity, os.sched_setaffinity\n"
        "b = affinityd.bind(); say(b.pinned, b.warnings, [*affinityd.set_affinity(0, 1)])"
    )
    line = "affinityd needs Linux; this process is not pinned"
    pinned, warned, cpus, logged = python(elsewhere, here)
    assert (pinned, warned, cpus) == (False, [line], [])
    assert line in logged


def test_a_binder_that_will_undo_the_pin_is_a_warning(here: Mapping[str, str]) -> None:
    said = python("say(affinityd.bind(gpus='0').warnings)", {**here, "OMP_PROC_BIND": "close"})
    assert "OMP_PROC_BIND=close binds threads anew after this pin" in said[0][-1]


@pytest.mark.parametrize(("passes", "warned"), [(16, False), (1, True)])
def test_threads_that_start_faster_than_they_can_be_pinned_cause_a_warning(
    here: Mapping[str, str], passes: int, *, warned: bool
) -> None:
    limit = f"from affinityd.linux import pinning; pinning.MAX_PASSES = {passes}"
    code = f"{limit}; say(affinityd.bind(gpus='0').warnings)"
    warnings = python(code, here)[0]
    assert any("threads start faster" in warning for warning in warnings) == warned


@pytest.mark.parametrize(("call", "cpus"), [("", [int(NEAR)]), ("mode='node'", sorted(CPUS))])
def test_variables_apply_to_arguments_that_are_not_given(
    tmp_path: Path, call: str, cpus: list[int]
) -> None:
    machine = tiny_tree(tmp_path, 0, 0)
    (machine / "sys/devices/system/node/node0/cpulist").write_text(BOTH)
    env = {"AFFINITYD_SOCKET": "/nonexistent", "AFFINITYD_ROOT": str(machine), "LOCAL_RANK": "0"}
    unique = {**env, "LOCAL_WORLD_SIZE": "2", "AFFINITYD_MODE": "single_unique"}
    assert python(f"b = affinityd.bind({call}); say(sorted(b.cpus))", unique)[0] == cpus


def test_running_threads_are_pinned_and_new_threads_inherit_masks(here: Mapping[str, str]) -> None:
    said = python(
        "e = threading.Event()\n"
        "threads = [threading.Thread(target=e.wait) for _ in range(9)]\n"
        "[t.start() for t in threads[:8]]\n"
        "affinityd.bind(1)\n"
        "threads[8].start()\n"
        "say(*(mask(int(t)) for t in os.listdir('/proc/self/task'))); e.set()",
        here,
    )
    assert said == [CPU[FAR]] * 10


def test_a_later_call_plans_like_the_first_call_even_in_a_thread(here: Mapping[str, str]) -> None:
    said = python(
        "far = (1, '1', [1], {'1'}, iter('1'))\n"
        "called = [sorted(affinityd.bind(gpus=it).cpus) for it in (*far, 0)]\n"
        "def work(): affinityd.bind(1); say(*called, mask())\n"
        "t = threading.Thread(target=work); t.start(); t.join()",
        here,
    )
    assert said == [*[CPU[FAR]] * 5, CPU[NEAR], CPU[FAR]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("bind(gpus='9', fail_closed=True)", NO_GPU),
        ("bind(memory='near', fail_closed=True)", "memory: 'near' is not one of local"),
        ("bind(mode='fast', fail_closed=True)", "mode: 'fast' is not one of all"),
        ("bind('x', fail_closed=True)", "rank: 'x' is not a rank; write it like 3, several"),
        ("bind(memory=3, fail_closed=True)", "memory: '3' is not one of local"),
        ("bind(timeout=None, fail_closed=True)", "timeout: 'None' is not a number of seconds from"),
        ("plan(timeout=-1)", "timeout: '-1' is not a number of seconds from 0.001"),
        ("verify('x')", "pid='x' is not a PID; a PID is a whole number from 1"),
        ("verify(0)", "pid=0 is not a PID"),
        ("set_affinity(2, 2)", "gpu_id=2 is not a whole number from 0 to below nproc_per_node=2"),
        ("set_affinity(-1, 2)", "gpu_id=-1 is not a whole number from 0"),
        ("set_affinity('x', 2)", "gpu_id='x' is not a whole number from 0"),
        ("set_affinity(0, 2, min_physical_cores=2)", "rank 0"),
        ("set_affinity(0, 10**9)", "gpus: 1000000000 entries are too many"),
    ],
)
def test_fail_closed_raises_errors(here: Mapping[str, str], call: str, message: str) -> None:
    code = f"try: affinityd.{call}\nexcept affinityd.GPUAffinityError as error: say(error)"
    assert python(code, here)[0].startswith(message)


OBSERVED = f"observe: would run on CPUs {FAR} (local)"


@pytest.mark.parametrize(
    ("switch", "call", "told"),
    [
        ("off", "bind(1).cpus", None),
        ("observe", "bind(1, fail_closed=True).cpus", OBSERVED),
        ("observe", "bind(gpus='9', fail_closed=True).cpus", NO_GPU),
        ("observe", "set_affinity(1, 2)", OBSERVED),
    ],
)
def test_off_and_observe_leave_the_mask(
    here: Mapping[str, str], switch: str, call: str, told: str | None
) -> None:
    code = (
        f"before = mask(); cpus = sorted(affinityd.{call});"
        "say(mask() == before == cpus, os.environ.get('AFFINITYD_UNPINNED'))"
    )
    assert python(code, {**here, "AFFINITYD": switch}) == [True, told]


def test_a_script_for_gpu_affinity_works_with_a_changed_import(here: Mapping[str, str]) -> None:
    said = python(
        "import affinityd as gpu_affinity\n"
        "cpus = gpu_affinity.set_affinity(1, 2, mode=gpu_affinity.Mode.UNIQUE_CONTIGUOUS,"
        " scope=gpu_affinity.Scope.SOCKET,"
        " multithreading=gpu_affinity.Multithreading.SINGLE_LOGICAL, balanced=False,"
        " min_physical_cores=1, max_physical_cores=1)\n"
        "say(type(cpus).__name__, sorted(cpus), mask())",
        {**here, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    )
    assert said == ["set", CPU[FAR], CPU[FAR]]


def test_set_affinity_warns_of_far_cpus(here: Mapping[str, str]) -> None:
    code = f"os.sched_setaffinity(0, {{{FAR}}}); say(sorted(affinityd.set_affinity(0, 1)))"
    cpus, stderr = python(code, here)
    assert cpus == CPU[FAR]
    said = f"CPUs {FAR} are not near the GPU; allowed are {FAR}"
    assert stderr.startswith(f"<string>:6: UserWarning: affinityd: {said}")


@pytest.mark.parametrize(
    ("bound", "env", "mask"),
    [
        ("affinityd.bind(1)", {}, CPU[FAR]),
        ("", {"AFFINITYD_CPULIST": FAR}, CPUS),  # a variable of another job's shell
        ("affinityd.bind(1)", {"AFFINITYD": "off"}, CPUS),
        ("affinityd.bind(1)", {"AFFINITYD": "observe"}, CPUS),
    ],
    ids=["bound", "not bound", "opted out", "observed"],
)
def test_a_dataloader_worker_gets_the_cpus_of_a_bound_process(
    here: Mapping[str, str], bound: str, env: dict[str, str], mask: list[int]
) -> None:
    worker = f"""
before = mask()
{bound}
if os.fork() == 0:
    os.sched_setaffinity(0, before)
    affinityd.worker_init_fn(3)
    say(mask()); os._exit(0)
os.wait()
"""
    assert python(worker, {**here, **env}) == [mask]


def test_the_enums_have_the_names_of_modes_and_other_choices() -> None:
    assert {str(mode) for mode in affinityd.Mode} == {*MODES}
    assert {name.replace("-", "_") for name in get_args(ModeName)} == {*MODES}
    for choice, name in ((affinityd.Scope, "scope"), (affinityd.Multithreading, "multithreading")):
        assert {str(member) for member in choice} == {*PARAMETERS[name].schema["enum"]}
    assert {*affinityd.__all__} <= {*dir(affinityd)}
    assert all(hasattr(affinityd, name) for name in affinityd.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'blind'"):
        affinityd.blind  # noqa: B018
