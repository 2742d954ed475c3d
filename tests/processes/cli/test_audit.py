"""`affinityd audit`, on real processes; the test says who holds a GPU, and what the node is like.

That is by the node.json of a daemon, as if its CPUs 0 to 3 were this machine's.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit import resident_memory
from affinityd.audit.model import GpuHolders, Holding
from affinityd.cli import main
from affinityd.cli.commands import audit
from affinityd.cli.render import audit_rows
from affinityd.cli.render.audit import memory_lines
from affinityd.cpuset import format_list
from affinityd.linux.processes import mask_of, stat_of
from affinityd.topology import node_file
from tests.support.audit_facts import GPU, Known, audited, process, scan_of
from tests.support.children import children_of, program, sleeping
from tests.support.machines.by_hand import made
from tests.support.small_node import ALL, FAR, NEAR, TOPOLOGY, publish, use_small_node

OTHER = ("nvidia", 1)
BUSY = "print('ready', flush=True)\nwhile True: pass"

#: A rank, and 7 workers of a DataLoader.
WITH_WORKERS = """
import os
for _ in range(7):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print('ready', flush=True)
os.read(0, 1)
"""

#: 64 MiB in memory.
LARGE = """
held = bytearray(64 * 2**20)
held[::4096] = b'x' * len(held[::4096])
print('ready', flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _small_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_node(monkeypatch, tmp_path)
    monkeypatch.delenv("AFFINITYD_ROOT")
    publish(tmp_path, TOPOLOGY)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    holders = Known()
    monkeypatch.setattr(audit, "HolderSources", lambda _ask: holders)
    return holders


def document(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the document."""
    code = main(["audit", "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("mask", "placement", "code"), [(NEAR, "local", 0), (FAR, "remote", 1), (ALL, "mixed", 0)]
)
def test_what_is_remote_fails_and_what_is_mixed_is_shown(
    capsys: pytest.CaptureFixture[str],
    known: Known,
    mask: frozenset[int],
    placement: str,
    code: int,
) -> None:
    with sleeping() as child:
        known.now = Known(child.pid).now
        os.sched_setaffinity(child.pid, mask)
        found, told = document(capsys)
    (shown,) = told["processes"]
    assert (found, shown["placement"]) == (code, placement)
    assert (shown["pid"], shown["threads"][0]["cpulist"]) == (child.pid, format_list(mask))
    assert told["sees"] == "all"
    assert told["gpus"][0]["processes"][placement] == 1


def test_the_table_has_a_row_a_process_and_says_what_mends_it(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    with sleeping() as child:
        known.now = Known(child.pid).now
        os.sched_setaffinity(child.pid, FAR)
        assert main(["audit"]) == 1
        stat = stat_of(child.pid)
    head, text, why, command = capsys.readouterr().out.splitlines()
    assert stat is not None
    user = pwd.getpwuid(os.getuid()).pw_name
    assert tuple(re.split("  +", head.strip())) == audit_rows.COLUMNS
    row = re.split("  +", text.strip())
    assert row[:9] == ["0", str(child.pid), stat.name, user, "-", "1", "remote", "mask", "0"]
    assert row[9] in {"0", "1"}  # it may not have run since
    assert row[10:] == ["1024 MiB"]
    assert why == (
        f"process {child.pid} ({stat.name}): mask: GPU 0 is on node 1, near CPUs 1,3, and its "
        "cpuset has CPUs there; what mends it now:"
    )
    assert command == f"  affinityd pin --gpus 0000:10:00.0 {child.pid}"


def test_what_it_says_mends_a_mask_does(capsys: pytest.CaptureFixture[str], known: Known) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    with sleeping(env=env) as child:
        known.now = Known(child.pid).now
        os.sched_setaffinity(child.pid, FAR)
        assert main(["audit"]) == 1
        said = capsys.readouterr().out.splitlines()[-1]
        assert main(said.split()[1:]) == 0
        assert main(["audit"]) == 0


def test_one_command_mends_a_rank_and_its_workers_wherever_it_left_them(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    with program(WITH_WORKERS) as child:
        known.now = Known(child.pid).now
        workers = children_of(child.pid)
        for pid in (child.pid, *workers):
            os.sched_setaffinity(pid, FAR)
        for force in ("", "--force "):
            assert main(["audit"]) == 1
            command = f"affinityd pin --tree {force}--gpus 0000:10:00.0 {child.pid}"
            assert capsys.readouterr().out.splitlines()[-1] == f"  {command}"
            pin = command.split()[1:]
            if not force:  # as if somebody had pinned the rank alone
                pin.remove("--tree")
            assert main(pin) == 0
            capsys.readouterr()
        assert main(["audit"]) == 0
        assert {mask_of(pid) for pid in workers} == {NEAR}


def test_workers_that_are_alike_share_a_row_below_their_rank(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    with program(WITH_WORKERS) as child:
        known.now = Known(child.pid).now
        first, *others, last = workers = children_of(child.pid)
        os.sched_setaffinity(child.pid, NEAR)
        for pid in workers:
            os.sched_setaffinity(pid, FAR)
        os.sched_setaffinity(last, NEAR)
        assert main(["audit"]) == 1
        folded = capsys.readouterr().out.splitlines()[1:-2]
        assert main(["audit", "--all"]) == 1
        full = capsys.readouterr().out.splitlines()[1:-2]
        stat = stat_of(child.pid)
    assert stat is not None
    rank, alike, alone = (line.split() for line in folded)
    assert rank[1:3] == [str(child.pid), stat.name]
    assert alike[1:5] == [str(first), stat.name, f"+{len(others)}", "alike"]
    assert alike[7:11] == [str(len(others) + 1), "remote", "mask", "0"]
    assert alone[1:3] == [str(last), stat.name]
    assert [int(line.split()[1]) for line in full] == [child.pid, *workers]
    column = folded[0].index(stat.name)
    assert [line.index(stat.name) - column for line in folded] == [0, 2, 2]


def test_processes_that_are_alike_have_one_remedy_between_them(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    with sleeping() as one, sleeping() as two, sleeping() as three:
        pids = sorted((one.pid, two.pid, three.pid))
        known.now = Known(*pids).now
        for pid in pids:
            os.sched_setaffinity(pid, FAR)
        assert main(["audit"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert re.match(rf"process {pids[0]} \(\w+\) and 2 more: mask: ", lines[4].replace(".", ""))
    assert lines[5:] == [f"  affinityd pin --gpus 0000:10:00.0 {pid}" for pid in pids]


def test_some_gpus_alone_are_looked_at(capsys: pytest.CaptureFixture[str], known: Known) -> None:
    with sleeping() as one, sleeping() as other:
        known.now = GpuHolders((Holding(one.pid, GPU), Holding(other.pid, OTHER)))
        for child in (one, other):
            os.sched_setaffinity(child.pid, FAR)  # which is near the other GPU
        codes = []
        for gpus, pids in (("0", [one.pid]), ("1", [other.pid]), ("0000:11:00.0,0", [1, 2])):
            code, told = document(capsys, "--gpus", gpus)
            codes.append(code)
            assert len(told["processes"]) == len(told["gpus"]) == len(pids)
            assert len(pids) == 2 or [it["pid"] for it in told["processes"]] == pids
    assert codes == [1, 0, 1]


def test_who_uses_several_gpus_is_shown_for_each_and_judged_by_all(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    with sleeping() as child:
        known.now = GpuHolders((Holding(child.pid, GPU, beside=(OTHER,)),))
        os.sched_setaffinity(child.pid, FAR)  # which is near the other GPU
        for gpus, counted in (("0", [1]), ("1", [0]), ("0,1", [1, 0])):
            code, told = document(capsys, "--gpus", gpus)
            (shown,) = told["processes"]
            assert (code, shown["pid"], shown["placement"]) == (0, child.pid, "local")
            assert (shown["gpu"], shown["gpus_beside"]) == (0, [{"vendor": "nvidia", "gpu": 1}])
            assert [gpu["processes"]["local"] for gpu in told["gpus"]] == counted
        assert main(["audit", "--gpus", "1"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["0+1", str(child.pid)]


def test_a_pin_as_it_is_said_for_two_gpus_gives_the_cpus_near_both() -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, FAR)
        assert main(["pin", "--gpus", "0000:10:00.0,0000:11:00.0", str(child.pid)]) == 0
        assert mask_of(child.pid) == NEAR | FAR


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpus", "7"), "affinityd audit: no GPU 7; visible are 0 (0000:10:00.0)"),
        (("--gpus", "x"), "affinityd audit: gpus: 'x' is not an index"),
        (("--gpus", ""), "affinityd audit: gpus: '' is not an index"),
        (("--memory", "--watch"), "affinityd audit: --memory has each process wait"),
    ],
)
def test_what_cannot_be_asked_for_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert main(["audit", *flags]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(said)


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "4000", "nan", "inf"])
def test_a_pause_that_is_none_is_bad_usage(
    capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", f"--watch={seconds}"])
    assert ended.value.code == 2
    assert "is no time from 0.1 to 3600 seconds" in capsys.readouterr().err


def test_a_node_without_a_gpu_cannot_be_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    publish(tmp_path, replace(made({0: "0-1"}), gpus=()))
    assert main(["audit"]) == 2
    assert capsys.readouterr().err == "affinityd audit: this node has no GPU\n"


def test_a_gpu_whose_place_nobody_knows_cannot_be_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, known: Known
) -> None:
    publish(tmp_path, made({0: "0,2", 1: "1,3"}, gpus=[None]))
    with sleeping() as child:
        known.now = Known(child.pid).now
        assert main(["audit"]) == 2
    _, row, said = capsys.readouterr().out.splitlines()
    assert "unknown" in row
    assert said == "GPU 0: its NUMA node is not known: nothing can be judged"


REPLAYED = (
    "is a replayed machine, and runs no processes: take away the AFFINITYD_ROOT, "
    "AFFINITYD_MACHINE or AFFINITYD_SOCKET that names it\n"
)


@pytest.mark.parametrize("setting", ["AFFINITYD_ROOT", "AFFINITYD_MACHINE", None])
def test_the_processes_of_this_machine_are_not_judged_by_another(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    known: Known,
    setting: str | None,
) -> None:
    known.now = Known(os.getpid()).now
    if setting is None:
        publish(tmp_path, TOPOLOGY, replayed=True)
    else:
        (tmp_path / node_file.NAME).unlink()
        machine = {"AFFINITYD_ROOT": os.fspath(tmp_path / "root"), "AFFINITYD_MACHINE": "dgx-a100"}
        monkeypatch.setenv(setting, machine[setting])
    assert main(["audit"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.fullmatch(rf"affinityd audit: '[\w-]+' {re.escape(REPLAYED)}", told.err)


@pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="the driver is loaded, and NVML answers"
)
def test_where_nobody_names_the_processes_it_says_so_and_cannot_tell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["audit"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for index, line in enumerate(lines):
        assert line.startswith(f"GPU {index}: its processes are not known: ")


def test_where_nobody_uses_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    assert known.now == GpuHolders()
    assert main(["audit"]) == 0
    assert capsys.readouterr().out == "no process uses a GPU\n"


def test_a_second_look_says_which_part_of_the_time_was_remote(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    known: Known,
) -> None:
    looks = 0

    def pause(seconds: float) -> None:
        """Wait so long twice, and then be interrupted."""
        nonlocal looks
        looks += 1
        if looks > 2:
            raise KeyboardInterrupt
        os.sched_setaffinity(child.pid, FAR if looks == 1 else NEAR)
        _sleep(seconds)

    _sleep = time.sleep
    monkeypatch.setattr("affinityd.cli.commands.audit.time.sleep", pause)
    with program(BUSY) as child:
        known.now = Known(child.pid).now
        with pytest.raises(KeyboardInterrupt):
            main(["audit", "--watch", "0.4"])
    tables = capsys.readouterr().out.split("\n\n")
    heads = [table.splitlines()[0].split("  ")[-1] for table in tables]
    parts = [table.splitlines()[1].split()[-1] for table in tables]
    assert heads == ["gpu memory", "remote time", "remote time"]
    assert parts == ["MiB", "100%", "0%"]


def test_memory_is_read_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], known: Known
) -> None:
    with program(LARGE) as child:
        known.now = Known(child.pid).now
        os.sched_setaffinity(child.pid, NEAR)
        _, without = document(capsys)
        code, told = document(capsys, "--memory")
        assert main(["audit", "--memory"]) == 0
    assert "memory" not in without["processes"][0]
    assert code == 0
    assert told["processes"][0]["memory"]["0"] >= 64 * 2**20
    assert re.search(r"\): resident memory: node 0 \d+ MiB", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (("LARGEST", 2**20), "GiB are resident, more than 0"),
        (("LONGEST", -1.0), "the -1 s for all of them were over"),
    ],
)
def test_memory_that_is_not_read_is_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    known: Known,
    limit: tuple[str, float],
    said: str,
) -> None:
    monkeypatch.setattr(resident_memory, *limit)
    with program(LARGE) as child:
        known.now = Known(child.pid).now
        _, told = document(capsys, "--memory")
        main(["audit", "--memory"])
    assert told["processes"][0]["memory"] is None
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_the_memory_of_one_that_has_ended_is_not_read() -> None:
    with sleeping() as child:
        pid = child.pid
    child.wait()
    scan = scan_of(TOPOLOGY, audited(process("0", pid=pid)))
    assert list(memory_lines(scan, resident_memory.read(scan.processes))) == [
        f"process {pid} (python): its memory was not read: No such file or directory"
    ]
