"""`affinityd verify`, on real processes and a replayed node."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.memory import REMEDIES as MEMORY_REMEDIES
from affinityd.audit.model import Holding
from affinityd.cli import main, target
from affinityd.cli.render.audit import VERIFY_COLUMNS
from affinityd.linux.cgroup import mask_of
from affinityd.linux.processes import thread_ids
from affinityd.topology.model import GpuKey
from affinityd.topology.nearness import ALLOCATION
from tests.support.audit_facts import GPU, Known
from tests.support.children import children_of, parent_of, program, sleeping
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY, publish, use_small_node

OTHER: GpuKey = ("nvidia", 1)

#: Three threads: the main thread on CPU 1, one on CPU 1, and one that has bound itself to CPU 0.
THREADS = """
import os, sys, threading
def work(name, cpu):
    os.sched_setaffinity(0, {cpu})
    open('/proc/thread-self/comm', 'w').write(name)
    barrier.wait()
    sys.stdin.read()
os.sched_setaffinity(0, {1})
barrier = threading.Barrier(3)
for name, cpu in (('near (one)', 1), ('far one', 0)):
    threading.Thread(target=work, args=(name, cpu)).start()
barrier.wait()
print('ready', flush=True)
"""

HOLD = "held = bytearray(64 * 2**20); held[::4096] = b'x' * len(held[::4096])"

DOUBT = (
    "its environment names none of GPUs 0-1, and {}: the process is not judged, since CPUs near "
    "any of them would count as near; name its GPU: --gpus N"
)
REPLAYED = DOUBT.format("it is not known which of them is used (the machine is replayed)")
REMEDIES = [
    "start commands here with affinityd exec -- COMMAND",
    f"allocation: {MEMORY_REMEDIES[ALLOCATION]}",  # this machine has no node 1
]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)


def verified(capsys: Capture, pid: int, *flags: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["verify", str(pid), "--format", "json", *flags])
    document = json.loads(capsys.readouterr().out)
    assert document["matches"] is {0: True, 1: False, 2: None}[code]
    return code, document["processes"]


def used(processes: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [[gpu["index"] for gpu in it["gpus"]] for it in processes]


def test_a_mask_is_judged_against_the_gpu_that_the_environment_names(capsys: Capture) -> None:
    with sleeping(env={"CUDA_VISIBLE_DEVICES": "0"}) as child:
        for mask, placement, code in ((NEAR, "local", 0), (FAR, "remote", 1), (ALL, "mixed", 1)):
            os.sched_setaffinity(child.pid, mask)
            found, (process,) = verified(capsys, child.pid)
            assert (found, len(process["mismatches"])) == (code, code)
            assert [thread["placement"] for thread in process["threads"]] == [placement]
    gpu = {"vendor": "nvidia", "index": 0, "pci_bus_id": "0000:10:00.0", "numa_node": 1}
    assert process["gpus"] == [gpu]
    assert process["near"] == {"cpulist": "1,1023", "memory_nodes": [1]}


@pytest.mark.parametrize(
    ("env", "flags", "is_doubtful"),
    [
        ({}, (), True),
        ({}, ("--gpus", "0,1"), False),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (), False),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (), False),
    ],
)
def test_a_process_that_may_use_any_gpu_is_not_judged_and_a_note_says_so(
    capsys: Capture, env: dict[str, str], flags: tuple[str, ...], is_doubtful: bool
) -> None:
    with sleeping(env=env) as child:
        os.sched_setaffinity(child.pid, FAR)
        code, (process,) = verified(capsys, child.pid, *flags)
        assert main(["pin", str(child.pid), *flags]) == is_doubtful
        assert not is_doubtful or mask_of(child.pid) == FAR
    assert (code, process["notes"]) == ((2, [REPLAYED]) if is_doubtful else (0, []))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Known:
    monkeypatch.delenv("AFFINITYD_ROOT")
    publish(tmp_path, TOPOLOGY)
    holders = Known()
    monkeypatch.setattr(target, "HolderSources", lambda _ask: holders)
    return holders


def test_if_the_environment_names_no_gpu_the_driver_does(capsys: Capture, known: Known) -> None:
    with sleeping(env={}) as child:
        known.now = Known(child.pid).now  # GPU 0
        for mask, code in ((NEAR, 0), (FAR, 1)):
            os.sched_setaffinity(child.pid, mask)
            found, (process,) = verified(capsys, child.pid)
            assert (found, process["notes"], used([process])) == (code, [], [[0]])
        pin = f"affinityd pin --gpus 0000:10:00.0 {child.pid}"
        assert process["mismatches"][0].endswith(f"; {pin} fixes that")
        assert main(pin.split()[1:]) == 0
        assert main(["verify", str(child.pid)]) == 0


def test_if_the_environment_names_another_gpu_than_the_driver_the_driver_decides(
    capsys: Capture, known: Known
) -> None:
    with sleeping(env={"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) as child:
        known.now = Known(child.pid).now  # GPU 0
        os.sched_setaffinity(child.pid, FAR)
        code, (process,) = verified(capsys, child.pid)
        line = "its environment names GPU 1, but the driver says GPU 0: the driver is right"
        assert (code, process["notes"], used([process])) == (1, [line], [[0]])
        assert main(["pin", str(child.pid)]) == 0
        assert mask_of(child.pid) == NEAR
        assert f"affinityd pin: process {child.pid}: {line}\n" in capsys.readouterr().err


def test_ranks_of_a_launcher_are_judged_and_pinned_by_gpus_that_the_driver_names(
    capsys: Capture, known: Known
) -> None:
    with parent_of({}, {}, {}) as child:
        zero, one, helper = children_of(child.pid)
        known.now = replace(Known(zero).now, holdings=(Holding(zero, GPU), Holding(one, OTHER)))
        for pid, mask in ((zero, NEAR), (one, NEAR), (helper, FAR)):
            os.sched_setaffinity(pid, mask)
        code, processes = verified(capsys, child.pid)
        gpus = dict(zip((it["pid"] for it in processes), used(processes), strict=True))
        assert (code, gpus) == (1, {child.pid: [0, 1], zero: [0], one: [1], helper: [0, 1]})
        (far,) = [it for it in processes if it["mismatches"]]
        assert far["pid"] == one
        pin = f"affinityd pin --gpus 0000:11:00.0 {one} fixes that"
        assert far["mismatches"][0].endswith(pin)
        assert not any(it["notes"] for it in processes)
        assert main(["pin", "--tree", str(child.pid)]) == 0
        assert [os.sched_getaffinity(pid) for pid in (zero, one)] == [NEAR, FAR]
        assert f"process {child.pid} (python): 1 thread already on CPUs" in capsys.readouterr().out


def test_every_thread_is_listed_and_equal_threads_share_a_row(capsys: Capture) -> None:
    with program(THREADS) as child:
        pid = child.pid
        code, (process,) = verified(capsys, pid, "--gpus", "0")
        assert main(["verify", str(pid), "--gpus", "0"]) == 1
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        tids = thread_ids(pid)
    keys = ("name", "placement", "cpulist", "last_cpu", "last_node")
    told = {tuple(it[key] for key in keys) for it in process["threads"] if it["tid"] != pid}
    assert (code, [it["tid"] for it in process["threads"]]) == (1, tids)
    assert told == {("near (one)", "local", "1", 1, 1), ("far one", "remote", "0", 0, 0)}
    head, *rows, owner, mismatch = capsys.readouterr().out.splitlines()
    assert tuple(re.split("  +", head.strip())) == VERIFY_COLUMNS
    assert [" ".join(row.split()) for row in rows] == [
        f"{pid} {name} 0 1 2 local 1 1 default",
        f"{pid} far one 0 1 1 remote 0 0 default",
    ]
    assert process["memory"] == {"policy": "default", "nodes": []}
    assert process["resident"]["0"] > 2**20
    assert process["cpus_set_by"] == "unknown (moved threads: far one)"
    assert owner == f"process {pid} ({name}): CPUs set by {process['cpus_set_by']}"
    assert re.fullmatch(
        rf"process {pid} \({name}\): mismatch: 1 thread \(first \d+, far one\) may run on CPUs 0 "
        rf"\(remote\), and GPU 0 is on node 1; affinityd pin --force --gpus 0 {pid} fixes that",
        mismatch,
    )


def test_one_command_pins_a_launcher_with_all_of_its_workers(capsys: Capture) -> None:
    with parent_of(*({"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"} for rank in "01")) as child:
        first, _ = children_of(child.pid)
        os.sched_setaffinity(first, FAR)  # the other ranks may run where their launcher may
        name = Path(f"/proc/{first}/comm").read_text().strip()
        assert main(["verify", str(child.pid)]) == 1
        said = [line for line in capsys.readouterr().out.splitlines() if ": mismatch: " in line]
        pin = f"affinityd pin --tree --force {child.pid}"
        far = "mismatch: may run far from their GPUs (mixed, remote)"
        assert said == [f"process {first} ({name}) and 1 more: {far}; {pin} fixes that"]
        assert main(pin.split()[1:]) == 0
        assert main(["verify", str(child.pid)]) == 0


def test_without_a_pid_the_caller_is_judged_and_no_pin_is_suggested() -> None:
    code = (
        f"{HOLD}; import os, sys; from affinityd.cli import main;"
        "os.sched_setaffinity(0, {int(sys.argv[1])}); sys.exit(main(['verify', *sys.argv[2:]]))"
    )
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    for cpu, flags, expected in (("1", (), 0), ("0", ("--resident",), 1)):
        command = [sys.executable, "-c", code, cpu, *flags]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == expected
        _, row, *said = done.stdout.splitlines()
        assert row.split()[4:8] == ["1", "remote" if expected else "local", cpu, cpu]
        ends = [line.partition("; ")[2] for line in said if "mismatch" in line]
        assert ends == (REMEDIES if expected else [])
