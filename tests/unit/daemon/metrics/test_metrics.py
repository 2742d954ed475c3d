"""The metrics of a scan: those of GPUs, and those of jobs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from affinityd import errors
from affinityd.audit.memory import HostMemory
from affinityd.audit.model import AuditedProcess, ContainerResources, CpuTime, Job, Scan
from affinityd.daemon.metrics import Metrics
from affinityd.daemon.metrics.audit import ENDED_JOBS_KEPT, OTHERS, JobRow, JobSeries
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.linux.processes import since_boot
from affinityd.linux.resident import ANONYMOUS, ResidentMemory
from affinityd.topology.model import Node
from tests.support.scans import GPU0, GPU1, MACHINE, NEAR, Audit, process, scan
from tests.support.scans import scanned as scanned_by

ONE = Job("slurm", "1")


def told(metrics: Metrics) -> list[str]:
    return metrics.exposition().decode().splitlines()


def scraped(*audits: Audit, job_series: int = 0) -> list[str]:
    return told(scanned(*audits, job_series=job_series))


def scanned(*audits: Audit, node: Node | None = None, job_series: int = 0) -> Metrics:
    *_, last = scanned_by(*audits, job_series=job_series)
    return Metrics(KnownNode(node), lambda: replace(last, boot=since_boot()))


def samples(lines: list[str], name: str, gpu: str | None = None) -> dict[str, float]:
    """Return a metric's samples of one GPU, by the values of their other labels."""
    found = {}
    for line in lines:
        if row := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
            labels = dict(re.findall(r'(\w+)="(.*?)"', row[2] or ""))
            of = [labels.pop(label, None) for label in ("gpu", "pci_bus_id", "uuid", "vendor")]
            if row[1] == f"affinityd_{name}" and gpu in {None, of[0]}:
                found[",".join(labels.values())] = float(row[3])
    return found


def held(far: int, *locked: str) -> HostMemory:
    """Return 1000 bytes of host memory, `far` per cent of them far."""
    drawn = {(ANONYMOUS, 0): 100 - far, (ANONYMOUS, 1): far}
    resident = ResidentMemory({ANONYMOUS: 1000}, drawn, dict.fromkeys(locked, 1))
    return HostMemory(resident, frozenset({0}), frozenset({1}), "local")


FOUND = Audit(
    MACHINE,
    scan(
        process(1, threads=3),
        process(2, cause="mask", placement="remote", threads=2, orphan="its job has ended"),
        process(3, cause="unpinned", placement="unpinned"),
        process(4, cause="mask", placement="remote", is_daemon=True),
        process(5, GPU1),
        since={GPU0: 1700000000.5},
    ),
)
ON_TWO = process(1, cause="mask", placement="remote")
ON_TWO = replace(ON_TWO, facts=replace(ON_TWO.facts, beside=(GPU1,)))
BESIDE = Audit(MACHINE, scan(ON_TWO))
UNKNOWN = Audit(MACHINE, scan(unknown=dict.fromkeys((GPU0, GPU1), "NVML did not answer")))
HUNG = Audit(MACHINE, scan(unknown={GPU0: "silent"}, lost=frozenset([GPU0])))
AWAY = Audit(replace(MACHINE, gpus=MACHINE.gpus[:1]), scan(gone=MACHINE.gpus[1:]))
NOWHERE = Audit(MACHINE, scan(process(1, placement="unknown"), near={**NEAR, GPU0: None}))

RESERVED = Audit(MACHINE, scan(process(1), reserved={GPU1: "slurm 7"}))
WAITED = {GPU0: CpuTime(8.0, 2.0, 2.5, 1.5), GPU1: CpuTime()}
WAITING = Audit(MACHINE, scan(process(1), gpu_time=WAITED))
UNCOUNTED = Audit(MACHINE, scan(process(1), gpu_time=WAITED, counts_waits=False))
MEMORY = Audit(MACHINE, scan(process(1), process(2), memory={1: held(38), 2: held(50, "VmPin")}))

NONE = dict.fromkeys(("local", "mixed", "remote", "unpinned", "unknown"), 0.0)
SINCE = "gpu_numa_mismatch_start_timestamp_seconds"


@pytest.mark.parametrize(
    ("audit", "gpu", "name", "values"),
    [
        (FOUND, "0", "gpu_audited", {"": 1}),
        (FOUND, "0", "gpu_numa_mismatch", {"allocation": 0, "mask": 1, "unpinned": 1}),
        (FOUND, "0", SINCE, {"": 1700000000.5}),
        (FOUND, "0", "gpu_processes", {**NONE, "local": 1, "remote": 1, "unpinned": 1}),
        (FOUND, "0", "gpu_orphan_processes", {"": 1}),
        (FOUND, "0", "gpu_reserved", {"": 0}),
        (RESERVED, "1", "gpu_reserved", {"": 1}),
        (UNKNOWN, "0", "gpu_reserved", {}),
        (FOUND, "0", "gpu_cpu_seconds_total", {"": 8}),
        (FOUND, "0", "gpu_remote_cpu_seconds_total", {"": 2}),
        (FOUND, "0", "gpu_lost", {"": 0}),
        (HUNG, "0", "gpu_lost", {"": 1}),
        (AWAY, "1", "gpu_lost", {"": 1}),
        (BESIDE, "0", "gpu_numa_mismatch", {"allocation": 0, "mask": 1, "unpinned": 0}),
        (BESIDE, "1", "gpu_numa_mismatch", {"allocation": 0, "mask": 1, "unpinned": 0}),
        (BESIDE, "1", "gpu_processes", {**NONE, "remote": 1}),
        (WAITING, "0", "gpu_wait_seconds_total", {"": 2.5}),
        (WAITING, "0", "gpu_throttled_seconds_total", {"": 1.5}),
        (WAITING, "1", "gpu_wait_seconds_total", {"": 0.0}),
        (UNCOUNTED, "0", "gpu_wait_seconds_total", {}),  # the kernel does not count waits
        (UNCOUNTED, "0", "gpu_throttled_seconds_total", {}),
        (
            MEMORY,
            "0",
            "gpu_host_memory_bytes",
            {"local,near": 1120, "remote,far": 880, "unknown,unknown": 0},
        ),
        (UNKNOWN, "0", "gpu_host_memory_bytes", {}),
        (FOUND, "1", "gpu_numa_mismatch", {"allocation": 0, "mask": 0, "unpinned": 0}),
        (FOUND, "1", SINCE, {}),
        (FOUND, None, "pin_overlap_cpus", {"": 2}),
        (FOUND, None, "scan_skipped_processes", {"": 1}),
        (FOUND, None, "numa_balancing", {"": 1}),
        # The GPU's processes are not known; the time that they have used is kept.
        (UNKNOWN, "0", "gpu_audited", {"": 0}),
        (UNKNOWN, "0", "gpu_numa_mismatch", {}),
        (UNKNOWN, "0", "gpu_processes", {}),
        (UNKNOWN, "0", "gpu_orphan_processes", {}),
        (UNKNOWN, "0", "gpu_cpu_seconds_total", {"": 8}),
        (UNKNOWN, "0", "gpu_remote_cpu_seconds_total", {"": 2}),
        (UNKNOWN, "1", "gpu_cpu_seconds_total", {}),  # its processes were never known
        # The GPU's node is not known.
        (NOWHERE, "0", "gpu_audited", {"": 1}),
        (NOWHERE, "0", "gpu_numa_mismatch", {}),
        (NOWHERE, "0", "gpu_processes", {**NONE, "unknown": 1}),
        (NOWHERE, "0", "gpu_remote_cpu_seconds_total", {}),
    ],
)
def test_a_scan_is_described_by_these_metrics(
    audit: Audit, gpu: str | None, name: str, values: dict[str, float]
) -> None:
    assert samples(scraped(audit), name, gpu) == values
    before = NOWHERE if audit is FOUND else FOUND
    assert samples(scraped(before, audit), name, gpu) == values


def test_counts_of_refusals_start_at_0_so_that_rate_sees_the_first_refusal() -> None:
    plans = samples(told(Metrics(KnownNode(), lambda: None)), "plans_total")
    statuses = {str(error.status) for error in vars(errors).values() if is_refusal(error)}
    assert plans == {f"job,,,{status}": 0 for status in statuses - {"500"}}


def is_refusal(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, errors.AffinityError)


def test_the_duration_of_a_scan_includes_its_documents() -> None:
    long_ago = Audit(MACHINE, scan(seconds=0.25, boot=since_boot() - 5))
    assert samples(scraped(long_ago), "scan_duration_seconds")[""] >= 5


def test_only_the_interval_has_a_sample_before_the_first_scan() -> None:
    lines = told(Metrics(KnownNode(), lambda: None, scan_interval=15))
    names = ("affinityd_gpu_audited", "affinityd_scan_", "affinityd_job_")
    found = [line.split()[0] for line in lines if line.startswith(names)]
    assert found == ["affinityd_scan_interval_seconds"]
    assert samples(lines, "scan_interval_seconds") == {"": 15}


@pytest.mark.parametrize(
    ("interval", "passed", "is_served"),
    [(15, 3, True), (15, 299, True), (15, 301, False), (200, 599, True), (200, 601, False)],
)
def test_metrics_of_an_old_scan_are_left_out_except_its_age(
    monkeypatch: pytest.MonkeyPatch, interval: float, passed: float, is_served: bool
) -> None:
    (result,) = scanned_by(FOUND)
    metrics = Metrics(KnownNode(), lambda: result, scan_interval=interval)
    now = result.boot + passed
    monkeypatch.setattr("affinityd.daemon.metrics.since_boot", lambda: now)
    lines = told(metrics)
    assert samples(lines, "scan_age_seconds")[""] == pytest.approx(passed)
    assert bool(samples(lines, "gpu_orphan_processes")) == is_served


def test_metrics_of_a_gpu_have_its_labels_and_no_pid_or_process_name() -> None:
    metrics = scanned(FOUND, node=Node(MACHINE))
    lines = told(metrics)
    labels = 'gpu="1",pci_bus_id="0000:11:00.0",uuid="",vendor="nvidia"'
    assert f"affinityd_gpu_audited{{{labels}}} 1.0" in lines
    of_gpus = [line for line in lines if re.search(r'[{,]gpu="', line)]
    assert {line.partition("{")[0].removeprefix("affinityd_") for line in of_gpus} >= {
        *("gpu_numa_node", "gpu_audited", "gpu_numa_mismatch", "gpu_cpu_seconds_total"),
    }
    assert [line for line in of_gpus if 'vendor="nvidia"' not in line] == []
    found = {name for line in scraped(FOUND) for name in re.findall(r'(\w+)="', line)}
    of_gpu = {"vendor", "gpu", "uuid", "pci_bus_id"}
    of_plans = {"mode", "result", "locality", "client"}
    assert found == {*of_gpu, *of_plans, "cause", "placement", "version"}


def test_jobs_have_metrics_up_to_the_limit() -> None:
    far = process(1, job=ONE, cause="mask", placement="remote")
    train = process(2, job=Job("kubernetes", "b7"))
    given = ContainerResources("team", "train-0", "main")
    train = replace(train, facts=replace(train.facts, given=given))
    used = {1: CpuTime(4.0, 1.0), 2: CpuTime(2.0, 0.0)}
    audit = Audit(MACHINE, scan(far, train, used=used, time=1700000000.0))
    assert not [line for line in scraped(audit) if "affinityd_job_" in line]
    own, other = ",1,,,slurm", ",other,,,"
    born = samples(scraped(audit, job_series=1), "job_cpu_seconds_total")
    assert born == {own: 0, other: 0}, "else a rate would miss the first seconds"
    ended = Audit(MACHINE, scan(far, train, time=1700000015.0))
    lines = scraped(audit, ended, job_series=1)
    assert samples(lines, "job_gpus") == {own: 1, other: 1}
    assert samples(lines, "job_mismatched_gpus") == {own: 1, other: 0}
    assert samples(lines, "job_gpu") == {own: 1, other: 1}
    assert samples(lines, "job_cpu_seconds_total") == {own: 4, other: 2}
    assert samples(lines, "job_remote_cpu_seconds_total") == {own: 1, other: 0}
    assert samples(lines, "job_numa_mismatch_start_timestamp_seconds") == {own: 1700000000}
    named = samples(scraped(audit, ended, job_series=2), "job_cpu_seconds_total")
    assert named == {own: 4, "main,b7,team,train-0,kubernetes": 2}


def test_a_pod_that_kubelet_names_later_keeps_its_row_and_its_counters() -> None:
    unnamed = [process(pid, job=Job("kubernetes", f"b{pid}")) for pid in (1, 2)]
    named = [
        replace(
            its, facts=replace(its.facts, given=ContainerResources("team", f"train-{pid}", "c"))
        )
        for pid, its in enumerate(unnamed)
    ]
    audits = [
        Audit(MACHINE, scan(*found, used={1: CpuTime(2.0), 2: CpuTime(1.0)}, boot=boot))
        for found, boot in ((unnamed, 1000.0), (named, 1015.0), (named, 1030.0))
    ]
    found = samples(scraped(*audits, job_series=2), "job_cpu_seconds_total")
    assert found == {"c,b1,team,train-0,kubernetes": 4, "c,b2,team,train-1,kubernetes": 2}


@pytest.mark.parametrize("job_id", ['a"b', "a\\b", "a\nb", "a\udcffb", "a\x1b[31m"])
def test_a_jobs_label_is_one_printable_line(job_id: str) -> None:
    audit = Audit(MACHINE, scan(process(job=Job("kubernetes", job_id))))
    rows = [line for line in scraped(audit, job_series=1) if line.startswith("affinityd_job_gpus{")]
    (row,) = rows
    assert row.isprintable()
    assert row.endswith(',scheduler="kubernetes"} 1.0')


TWO, THREE, FOUR = (Job("slurm", str(number)) for number in range(2, 5))


def ran(boot: float, times: Mapping[Job, float]) -> Scan:
    """Return a scan that adds these seconds of CPU time to jobs, half of them far away."""
    used = {pid: CpuTime(seconds, seconds / 2) for pid, seconds in enumerate(times.values())}
    return scan(*(process(pid, job=job) for pid, job in enumerate(times)), used=used, boot=boot)


def job_totals(rows: Sequence[JobRow]) -> dict[str, float]:
    return {row.job.id: row.time.total for row in rows}


def test_shared_counters_never_fall_when_jobs_end() -> None:
    series = JobSeries(1)
    series.scanned(ran(1000, {ONE: 1, TWO: 2, THREE: 4}))
    assert job_totals(series.scanned(ran(1015, {TWO: 1, THREE: 0}))) == {"1": 1, "other": 6}
    # A job in the shared row stays there, and a new job takes the free row.
    later = 1000 + ENDED_JOBS_KEPT
    assert job_totals(series.scanned(ran(later, {THREE: 1, FOUR: 1}))) == {"4": 0, "other": 7}
    series.scanned(ran(later + ENDED_JOBS_KEPT, {}))
    (row,) = series.scanned(ran(later + 2 * ENDED_JOBS_KEPT, {}))
    assert (row.job, row.time) == (OTHERS, CpuTime(8, 4))


def test_time_of_jobs_counts_even_if_jobs_could_be_forgotten_between_two_scans() -> None:
    series = JobSeries(1)
    for scans in range(3):
        rows = series.scanned(ran(1000 + scans * ENDED_JOBS_KEPT, {ONE: 1}))
    assert job_totals(rows) == {"1": 2}
    assert job_totals(series.scanned(ran(1000 + 3 * ENDED_JOBS_KEPT, {}))) == {"1": 3}


FAR, UNPINNED = (
    process(cause=cause, job=ONE, placement=placement)
    for cause, placement in (("mask", "remote"), ("unpinned", "unpinned"))
)
NEAR_ITS_GPU, ON_BOTH = process(job=ONE), process(job=ONE, gpu=GPU1)
ON_HIDDEN = process(job=TWO)
SHARES = process(job=TWO, cause="mask", placement="remote", gpu=GPU1)
HIDDEN = {GPU0: "hidden"}
Held = tuple[float, dict[str, float]]  #: seconds of GPUs: in total, and by cause of a mismatch


@pytest.mark.parametrize(
    ("scans", "own", "shared"),
    [
        ([[NEAR_ITS_GPU], [NEAR_ITS_GPU]], (10, {}), None),
        ([[FAR], [NEAR_ITS_GPU]], (10, {"mask": 10}), None),  # a finding holds until the next scan
        ([[NEAR_ITS_GPU, FAR]] * 2, (10, {"mask": 10}), None),  # a GPU counts once
        ([[UNPINNED, FAR], [FAR]], (10, {"mask": 10}), None),  # the GPU's first cause counts
        ([[UNPINNED], [FAR], []], (20, {"mask": 10, "unpinned": 10}), None),
        ([[FAR, ON_BOTH], [NEAR_ITS_GPU, ON_BOTH]], (20, {"mask": 10}), None),
        ([[FAR], [], [], [FAR], [FAR]], (20, {"mask": 20}), None),
        ([[FAR], None, [FAR]], (20, {"mask": 20}), None),  # an unseen mismatch goes on
        ([[FAR], *[None] * 40, [FAR]], (0, {}), None),  # a job unseen for long is forgotten
        ([[NEAR_ITS_GPU, ON_HIDDEN], *[None] * 40], None, (300, {})),
        ([*[[NEAR_ITS_GPU, SHARES]] * 2, [NEAR_ITS_GPU]], (20, {}), (20, {"mask": 20})),
    ],
)
def test_gpu_seconds_are_counted_in_total_and_by_cause_of_a_mismatch(
    scans: list[list[AuditedProcess] | None], own: Held | None, shared: Held | None
) -> None:
    series, rows = JobSeries(1), {}
    for number, processes in enumerate(scans):
        unknown = HIDDEN if processes is None else {}
        found = scan(*(processes or ()), unknown=unknown, boot=1000.0 + 10 * number)
        for _ in range(2):  # a scan that is reported twice counts once
            rows = {row.job: row for row in series.scanned(found)}
    expected = {job: held for job, held in ((ONE, own), (OTHERS, shared)) if held}
    assert {
        job: (
            sum(row.gpu_seconds.values()),
            {cause: by for cause, by in row.gpu_seconds.items() if cause and by},
        )
        for job, row in rows.items()
    } == expected


def test_a_job_keeps_its_gpu_when_the_gpu_s_index_changes() -> None:
    first, second = MACHINE.gpus
    swapped = replace(MACHINE, gpus=(replace(second, index=0), replace(first, index=1)))
    found = scan(FAR, boot=1000.0)
    hidden = scan(unknown={GPU1: "hidden"}, boot=1010.0)
    ended = scan(boot=1020.0)
    audits = [Audit(MACHINE, found), Audit(swapped, hidden), Audit(swapped, ended)]
    held = samples(scraped(*audits, job_series=1), "job_gpu_seconds_total")
    assert held == {",1,,,slurm": 20}


OF_DAEMON = process(job=ONE, cause="mask", placement="remote", is_daemon=True)


@pytest.mark.parametrize(
    ("scans", "since"),
    [
        ([[NEAR_ITS_GPU]], [None]),
        ([[NEAR_ITS_GPU], [FAR], [FAR]], [2]),
        ([[FAR], [NEAR_ITS_GPU], [FAR]], [3]),  # a second mismatch is new
        ([[FAR], [], [FAR]], [3]),
        ([[FAR], None, [FAR]], [1]),  # an unseen mismatch goes on
        ([[OF_DAEMON]], []),
    ],
)
def test_a_job_s_mismatch_has_a_start_time(
    scans: list[list[AuditedProcess] | None], since: list[float | None]
) -> None:
    series, rows = JobSeries(1), list[JobRow]()
    for number, processes in enumerate(scans, 1):
        unknown = HIDDEN if processes is None else {}
        moment = {"time": float(number), "boot": 1000.0 + 15 * number}
        rows = series.scanned(scan(*(processes or ()), unknown=unknown, **moment))
    assert [row.since for row in rows] == since
