"""`affinityd verify`, on real processes and a replayed node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from affinityd.cli import main
from affinityd.cli.console import aligned
from affinityd.cli.render import verify
from affinityd.linux.processes import thread_ids
from tests.support.children import program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import write_tree
from tests.support.paths import REPOSITORY
from tests.support.small_node import ALL, FAR, NEAR, use_small_node

#: Three threads: the main one on CPU 1, others on 1 and, by their own choice, on 0.
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

#: A launcher of two ranks, each on the CPU in argv.
LAUNCHER = """
import os, sys
hears, says = os.pipe()
os.set_inheritable(says, True)
code = "import os; os.sched_setaffinity(0, {%s}); os.write(%d, b'x'); os.read(0, 1)"
for rank, cpu in enumerate(sys.argv[1:]):
    environ = {'LOCAL_RANK': str(rank), 'LOCAL_WORLD_SIZE': '2'}
    if os.fork() == 0:
        arguments = [sys.executable, '-I', '-S', '-c', code % (cpu, says)]
        os.execve(sys.executable, arguments, environ)
for _ in sys.argv[1:]:
    os.read(hears, 1)
print('ready', flush=True)
sys.stdin.read()
"""

#: 64 MiB in memory.
LARGE = """
import sys
held = bytearray(64 * 2**20)
held[::4096] = b'x' * len(held[::4096])
print('ready', flush=True)
input()
"""

#: Its memory is bound to node 0.
BOUND = f"""
import os, sys
sys.path.insert(0, {os.fspath(REPOSITORY)!r})
from affinityd.linux.memory_policy import set_policy
assert not set_policy('bind', frozenset({{0}})).refusals
print('ready', flush=True)
input()
"""


DOUBT = (
    "its environment names none of GPUs 0-1, and near is what is near any of them: affinityd audit "
    "asks the driver which one it uses; or name it, --gpus N"
)


STARTED_HERE = "what is started here is to be started with affinityd exec -- COMMAND"


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)


def verified(
    capsys: pytest.CaptureFixture[str], pid: int, *flags: str
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the document."""
    code = main(["verify", str(pid), "--format", "json", *flags])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("mask", "placement", "code"),
    [(NEAR, "local", 0), (FAR, "remote", 1), (ALL, "mixed", 1)],
)
def test_a_mask_is_judged_against_the_gpu_that_the_environment_names(
    capsys: pytest.CaptureFixture[str], mask: frozenset[int], placement: str, code: int
) -> None:
    with sleeping(env={"CUDA_VISIBLE_DEVICES": "0"}) as child:
        os.sched_setaffinity(child.pid, mask)
        found, document = verified(capsys, child.pid)
    (process,) = document["processes"]
    assert found == code
    assert document["matches"] is (code == 0)
    assert process["gpus"] == [{"index": 0, "pci_bus_id": "0000:10:00.0", "numa_node": 1}]
    assert process["near"] == {"cpulist": "1,3", "memory_nodes": [1]}
    assert [thread["placement"] for thread in process["threads"]] == [placement]
    assert len(process["mismatches"]) == code


@pytest.mark.parametrize(
    ("env", "flags", "is_doubtful"),
    [
        pytest.param({}, (), True, id="nothing says which one it uses"),
        pytest.param({}, ("--gpus", "0,1"), False, id="we said"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,1"}, (), False, id="its environment says"),
        pytest.param({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (), False, id="its rank says"),
    ],
)
def test_a_process_that_may_use_any_gpu_is_judged_by_all_of_them_with_a_note(
    capsys: pytest.CaptureFixture[str],
    env: dict[str, str],
    flags: tuple[str, ...],
    is_doubtful: bool,
) -> None:
    with sleeping(env=env) as child:
        os.sched_setaffinity(child.pid, FAR)
        code, document = verified(capsys, child.pid, *flags)
    assert code == 0
    assert document["processes"][0]["notes"] == [DOUBT] * is_doubtful


def test_gpus_that_are_near_the_same_cpus_need_no_telling_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tree = write_tree(made({0: "0,2", 1: "1,3"}, gpus=[1, 1]), tmp_path / "alike")
    monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(tree))
    with sleeping(env={}) as child:
        os.sched_setaffinity(child.pid, NEAR)
        _, document = verified(capsys, child.pid)
    assert document["processes"][0]["notes"] == []


def test_what_pin_mends_is_no_mismatch_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    with sleeping(env={"CUDA_VISIBLE_DEVICES": "0"}) as child:
        assert main(["verify", str(child.pid)]) == 1
        said = capsys.readouterr().out.splitlines()
        assert said[-1].endswith(f"affinityd pin {child.pid} mends that")
        assert main(["pin", str(child.pid)]) == 0
        assert main(["verify", str(child.pid)]) == 0


def test_each_thread_is_told_by_its_name_mask_and_last_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with program(THREADS) as child:
        code, document = verified(capsys, child.pid, "--gpus", "0")
        tids = thread_ids(child.pid)
    threads = document["processes"][0]["threads"]
    assert code == 1
    assert [thread["tid"] for thread in threads] == tids
    assert {  # a later one may have a lower number, where those have begun again
        (it["name"], it["placement"], it["cpulist"], it["last_cpu"], it["last_node"])
        for it in threads
        if it["tid"] != child.pid
    } == {("near (one)", "local", "1", 1, 1), ("far one", "remote", "0", 0, 0)}


def test_the_table_has_a_line_for_threads_that_are_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with program(THREADS) as child:
        assert main(["verify", str(child.pid), "--gpus", "0"]) == 1
        name = Path(f"/proc/{child.pid}/comm").read_text().strip()
        tid = thread_ids(child.pid)[2]
    head, *rows, mismatch = capsys.readouterr().out.splitlines()
    assert tuple(re.split("  +", head.strip())) == verify.COLUMNS
    assert [row.split() for row in rows] == [
        [str(child.pid), name, "0", "1", "2", "local", "1", "1", "default"],
        [str(child.pid), "far", "one", "0", "1", "1", "remote", "0", "0", "default"],
    ]
    assert mismatch == (
        f"process {child.pid} ({name}): mismatch: 1 thread (first {tid}, far one) may run on "
        f"CPUs 0 (remote), and GPU 0 is on node 1; affinityd pin --force --gpus 0 "
        f"{child.pid} mends that"
    )


@pytest.mark.parametrize(("cpus", "mismatches"), [(("1", "0"), [0, 0]), (("0", "0"), [1, 0])])
def test_each_rank_of_a_launcher_is_judged_by_its_own_gpu(
    capsys: pytest.CaptureFixture[str], cpus: tuple[str, str], mismatches: list[int]
) -> None:
    with program(LAUNCHER, *cpus) as child:
        _, document = verified(capsys, child.pid)
    launcher, *ranks = document["processes"]
    assert [gpu["index"] for gpu in launcher["gpus"]] == [0, 1]
    assert [[gpu["index"] for gpu in rank["gpus"]] for rank in ranks] == [[0], [1]]
    assert [len(rank["mismatches"]) for rank in ranks] == mismatches


@pytest.mark.parametrize(
    ("cpus", "options"),
    [
        pytest.param(("0,1", "0,1"), "--tree", id="they run where their launcher may"),
        pytest.param(("0", "0,1"), "--tree --force", id="one of them was pinned to less"),
    ],
)
def test_one_command_mends_all_workers_of_a_launcher(
    capsys: pytest.CaptureFixture[str], cpus: tuple[str, str], options: str
) -> None:
    with program(LAUNCHER, *cpus) as child:
        name = Path(f"/proc/{child.pid}/comm").read_text().strip()
        words = "mixed, remote" if "0" in cpus else "mixed"
        remedy = f"affinityd pin {options} {child.pid} mends that"
        assert main(["verify", str(child.pid)]) == 1
        said = [line for line in capsys.readouterr().out.splitlines() if ": mismatch: " in line]
        who = f"2 descendants of process {child.pid} ({name})"
        assert said == [f"{who}: mismatch: may run far from their GPUs ({words}); {remedy}"]
        _, document = verified(capsys, child.pid)
        for rank in document["processes"][1:]:
            (mismatch,) = rank["mismatches"]
            assert mismatch.endswith(f"; {remedy}")
        assert main(["pin", *options.split(), str(child.pid)]) == 0
        assert main(["verify", str(child.pid)]) == 0


def test_a_launcher_that_is_far_is_named_with_its_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with program(LAUNCHER, "0", "0") as child:
        os.sched_setaffinity(child.pid, FAR)
        assert main(["verify", str(child.pid), "--gpus", "0"]) == 1
        *_, said = capsys.readouterr().out.splitlines()
        assert said.startswith(f"process {child.pid} (")
        assert "and 2 descendants: mismatch: may run far from their GPUs (remote)" in said
        assert said.endswith(f"; affinityd pin --tree --gpus 0 {child.pid} mends that")


def test_a_descendant_without_a_gpu_is_judged_by_its_process_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = """
import os, sys
if os.fork() == 0:
    environ = {'CUDA_VISIBLE_DEVICES': ''}
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    os.execve(sys.executable, [sys.executable, '-I', '-S', '-c', code], environ)
sys.stdin.read()
"""
    with program(code, env={"CUDA_VISIBLE_DEVICES": "1"}) as child:
        _, document = verified(capsys, child.pid)
    assert [[gpu["index"] for gpu in it["gpus"]] for it in document["processes"]] == [[1], [1]]


@needs_cpuset
def test_where_the_cpuset_has_no_near_cpu_that_is_the_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with cpuset() as folder, sleeping(env={"CUDA_VISIBLE_DEVICES": "0"}) as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text("0")
        code, document = verified(capsys, child.pid)
    (sentence,) = document["processes"][0]["mismatches"]
    assert code == 1
    assert sentence.startswith("GPU 0 is on node 1, and its cpuset, 0, has no CPU there")


def test_memory_that_is_bound_away_from_the_gpu_is_a_mismatch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with program(BOUND) as child:
        os.sched_setaffinity(child.pid, NEAR)
        far_code, far = verified(capsys, child.pid, "--gpus", "0")
        os.sched_setaffinity(child.pid, FAR)
        near_code, near = verified(capsys, child.pid, "--gpus", "1")
    assert (far_code, near_code) == (1, 0)
    assert far["processes"][0]["memory"] == {"policy": "bind", "nodes": [0]}
    assert far["processes"][0]["mismatches"][0].startswith("its memory policy is bind on node 0")
    assert near["processes"][0]["mismatches"] == []


def test_resident_memory_is_judged_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with program(LARGE) as child:
        os.sched_setaffinity(child.pid, NEAR)
        code, document = verified(capsys, child.pid, "--gpus", "0")
        assert (code, document["processes"][0]["resident"]) == (0, None)
        code, document = verified(capsys, child.pid, "--gpus", "0", "--resident")
        assert main(["verify", str(child.pid), "--gpus", "0", "--resident"]) == 1
    (process,) = document["processes"]
    assert code == 1
    assert process["resident"]["0"] >= 64 * 2**20
    assert process["mismatches"][0].startswith("100% of its resident memory is on node 0")
    assert ": resident memory: node 0 " in capsys.readouterr().out


def test_without_a_pid_the_caller_itself_is_judged() -> None:
    code = (
        "import os, sys; from affinityd.cli import main;"
        "os.sched_setaffinity(0, {int(sys.argv[1])}); sys.exit(main(['verify']))"
    )
    for cpu, expected in ((1, 0), (0, 1)):
        done = subprocess.run(
            [sys.executable, "-c", code, str(cpu)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected
        _, row, *said = done.stdout.splitlines()
        assert row.split()[4:8] == ["1", "local" if cpu else "remote", str(cpu), str(cpu)]
        assert [line.partition("; ")[2] for line in said] == [STARTED_HERE] * expected


def test_no_command_is_told_to_move_what_has_ended_by_then() -> None:
    code = (
        "import os, sys; os.sched_setaffinity(0, {0}); held = b'x' * (2**26);"
        "from affinityd.cli import main; sys.exit(main(['verify', '--resident', '--gpus', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "resident memory is on node 0" in done.stdout
    assert "affinityd exec --memory preferred" in done.stdout
    assert "migratepages" not in done.stdout
    assert "affinityd pin" not in done.stdout


def test_where_nobody_knows_the_gpus_node_it_is_no_mismatch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tree = write_tree(made({0: "0,2", 1: "1,3"}, gpus=[None]), tmp_path / "unknown")
    monkeypatch.setenv("AFFINITYD_ROOT", os.fspath(tree))
    with sleeping() as child:
        assert main(["verify", str(child.pid)]) == 0
    _, row, note = capsys.readouterr().out.splitlines()
    assert row.split()[2:6] == ["0", "?", "1", "unknown"]
    assert note.endswith("note: GPU 0 is on an unknown node: it cannot be judged")


def test_no_gpu_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with sleeping(env={"CUDA_VISIBLE_DEVICES": "-1"}) as child:
        assert main(["verify", str(child.pid)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("affinityd verify: no GPU is visible")


def test_a_table_is_as_wide_as_its_widest_cells() -> None:
    lines = list(aligned(("name", "cpus"), [("a", "1"), ("longer", "12345")], {"cpus"}))
    assert lines == ["name     cpus", "a           1", "longer  12345"]


def test_a_reader_that_has_seen_enough_does_not_change_what_was_found() -> None:
    with program(LARGE) as child:
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "affinityd", "verify", str(child.pid), "--gpus", "0"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
