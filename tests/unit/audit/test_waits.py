"""The cause of a process's wait: one of the facts that the kernel counts, or no known cause."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.model import KUBERNETES, SLURM
from affinityd.audit.waits import Runner, Waits, remedy
from affinityd.linux import scheduling


def runner(kind: str, ran: float, owner: str | None = None) -> Runner:
    return Runner(kind, 7, "other", owner, ran)


def waits(
    waited: float | None,
    ran: float = 5,
    cpus: int = 1,
    beside: Sequence[Runner] = (),
    **facts: Any,  # noqa: ANN401 - fields of Waits
) -> Waits:
    """Return ten seconds in which a process's threads ran and waited for these times."""
    here, elsewhere = frozenset(range(cpus)), frozenset({8, 9})
    return replace(
        Waits(10, waited, ran, here, elsewhere, limited="/limit", runners=beside), **facts
    )


DAEMON, NEIGHBOR = runner("system", 2), runner("neighbor", 5)
SIBLING = runner("own_threads", 5)


@pytest.mark.parametrize(
    ("of_process", "cause"),
    [
        pytest.param(waits(0, ran=10), None, id="it waited for nothing"),
        pytest.param(waits(0.05), None, id="it hardly waited"),
        pytest.param(waits(None, beside=[NEIGHBOR]), None, id="its wait is not measurable"),
        pytest.param(waits(5), None, id="the other process has ended"),
        pytest.param(waits(5, beside=[NEIGHBOR, DAEMON]), "neighbor", id="another job ran most"),
        pytest.param(waits(5, beside=[DAEMON]), "system", id="a service ran"),
        pytest.param(waits(5, beside=[runner("neighbor", 0.9)]), None, id="a job ran too little"),
        pytest.param(waits(5, beside=[SIBLING]), "own_threads", id="a sibling shares its CPU"),
        pytest.param(waits(10, ran=20, cpus=2), "own_threads", id="three threads on two CPUs"),
        pytest.param(waits(3, ran=6, cpus=2), None, id="bursts on mostly idle CPUs"),
        pytest.param(waits(10, cpus=2, throttled=6), "throttled", id="most is throttled"),
        pytest.param(waits(5, used_up=0.5, beside=[NEIGHBOR]), "throttled", id="limit is used up"),
        pytest.param(waits(5, stolen=5), None, id="the hypervisor's time is no cause"),
        pytest.param(waits(15, 75, 8, [NEIGHBOR]), "own_threads", id="nine threads on 8 CPUs"),
    ],
)
def test_a_wait_is_explained_by_a_fact_or_not_at_all(of_process: Waits, cause: str | None) -> None:
    assert of_process.cause == cause
    assert (remedy(of_process, None) is None) == (cause is None)


THROTTLED, SURPLUS = waits(5, used_up=1), waits(20, cpus=2, ran=20)


def beside(kind: str, owner: str | None = None) -> Waits:
    return waits(5, beside=[runner(kind, 5, owner)])


@pytest.mark.parametrize(
    ("of_process", "scheduler", "named"),
    [
        (THROTTLED, None, "/limit"),
        (SURPLUS, None, "OMP_NUM_THREADS to at most 2"),
        (beside("neighbor"), None, "affinityd pin --tree --cpus 8-9 7"),
        (replace(beside("neighbor"), elsewhere=frozenset()), None, "CPUs of its own"),
        (beside("neighbor", "slurm 8"), SLURM, "--exact"),
        (beside("neighbor", "kubernetes uid"), None, "static CPU manager"),
        (beside("neighbor"), KUBERNETES, "static CPU manager"),
        (beside("system", "chronyd.service"), None, "chronyd.service) also ran on its CPUs: keep"),
        (waits(5, beside=[NEIGHBOR] * 4), None, f"{', '.join(['other (process 7)'] * 3)} also"),
    ],
)
def test_a_remedy_names_the_limit_or_process_concerned(
    of_process: Waits, scheduler: str | None, named: str
) -> None:
    assert named in (remedy(of_process, scheduler) or "")


STAT = """cpu  3 3 3 3 3 3 3 3 0 0
cpu0 100 0 200 5000 7 10 20 50 30 0
cpu12 1 2 3 4 5 6 7 8
intr 5
"""


def test_counters_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("2500000000 1500000000 12\n")
    (tmp_path / "stat").write_text(STAT)
    proc = str(tmp_path)
    assert scheduling.thread_time(7, 7, proc) == (2.5, 1.5)
    assert scheduling.stolen_times(proc) == {0: 0.5, 12: 0.08}


def test_waits_are_unknown_if_the_kernel_does_not_count_them(tmp_path: Path) -> None:
    proc = str(tmp_path)
    assert scheduling.thread_time(7, 7, proc) is None
    assert scheduling.stolen_times(proc) == {}
    assert scheduling.pressure_of("0::/\n", f"{tmp_path}/") is None
