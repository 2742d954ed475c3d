"""The metrics of a scan, as a scrape has them."""

from __future__ import annotations

import re
import time

import pytest

from affinityd.audit.model import CpuTime, Job
from affinityd.cli.commands.serve import counting
from affinityd.daemon.metrics import enforcement
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.scanner import Audit
from affinityd.discovery.nvml.report import NvmlReport
from affinityd.topology.model import Node
from tests.support.enforce_reports import enforced
from tests.support.scans import GPU0, GPU1, MACHINE, NEAR, process, scan

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
ONE = Job("slurm", "1")


def scraped(*audits: Audit, job_series: int = 0, accept: str = "") -> list[str]:
    """Return the lines of a scrape after these scans."""
    metrics = Metrics(lambda: None, job_series=job_series)
    for audit in audits:
        metrics.scanned(audit)
    return metrics.exposition(accept)[0].decode().splitlines()


def samples(lines: list[str], name: str, gpu: str | None = None) -> dict[str, float]:
    """Return a metric's samples, of one GPU: the values of the labels that tell them apart."""
    found = {}
    for line in lines:
        if row := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
            labels = dict(re.findall(r'(\w+)="(.*?)"', row[2] or ""))
            of = [labels.pop(label, None) for label in ("gpu", "pci_bus_id", "uuid", "vendor")]
            if row[1] == name and gpu in {None, of[0]}:
                found[",".join(labels.values())] = float(row[3])
    return found


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

NONE_OF_EACH = dict.fromkeys(("local", "mixed", "remote", "unpinned", "unknown"), 0.0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("affinityd_gpu_audited", {"": 1}),
        ("affinityd_gpu_numa_mismatch", {"allocation": 0, "mask": 1, "unpinned": 1}),
        ("affinityd_gpu_numa_mismatch_start_timestamp_seconds", {"": 1700000000.5}),
        ("affinityd_gpu_processes", {**NONE_OF_EACH, "local": 1, "remote": 1, "unpinned": 1}),
        ("affinityd_gpu_threads", {**NONE_OF_EACH, "local": 3, "remote": 2, "unpinned": 1}),
        ("affinityd_gpu_orphan_processes", {"": 1}),
        ("affinityd_gpu_cpu_seconds_total", {"": 8}),
        ("affinityd_gpu_remote_cpu_seconds_total", {"": 2}),
    ],
)
def test_a_gpu_whose_processes_are_known_has(name: str, values: dict[str, float]) -> None:
    assert samples(scraped(FOUND), name, "0") == values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("affinityd_pin_overlap_cpus", 2),
        ("affinityd_scan_duration_seconds", 0.25),
        ("affinityd_scan_skipped_processes", 1),
        ("affinityd_numa_balancing", 1),
    ],
)
def test_the_scan_as_a_whole_has(name: str, value: float) -> None:
    assert samples(scraped(FOUND), name) == {"": value}


def test_a_gpu_with_none_far_away_has_a_mismatch_of_0_and_no_beginning_of_it() -> None:
    lines = scraped(FOUND)
    mismatch = samples(lines, "affinityd_gpu_numa_mismatch", "1")
    assert mismatch == {"allocation": 0, "mask": 0, "unpinned": 0}
    assert not samples(lines, "affinityd_gpu_numa_mismatch_start_timestamp_seconds", "1")


UNKNOWN = Audit(MACHINE, scan(unknown=dict.fromkeys((GPU0, GPU1), "NVML did not answer")))
NOWHERE = Audit(MACHINE, scan(process(1, placement="unknown"), near={**NEAR, GPU0: None}))


@pytest.mark.parametrize(
    ("audit", "absent", "present"),
    [
        (
            UNKNOWN,
            {"numa_mismatch", "processes", "threads", "orphan_processes"},
            {"audited": {"": 0}, "cpu_seconds_total": {"": 8}, "remote_cpu_seconds_total": {"": 2}},
        ),
        (
            NOWHERE,
            {"numa_mismatch", "remote_cpu_seconds_total"},
            {"audited": {"": 1}, "processes": {**NONE_OF_EACH, "unknown": 1}},
        ),
    ],
    ids=["processes are not known", "place is not known"],
)
def test_a_gpu_has_no_sample_of_what_cannot_be_known_where_its(
    audit: Audit, absent: set[str], present: dict[str, dict[str, float]]
) -> None:
    lines = scraped(audit)
    assert {name for name in absent if samples(lines, f"affinityd_gpu_{name}", "0")} == set()
    assert {name: samples(lines, f"affinityd_gpu_{name}", "0") for name in present} == present


def test_a_gpu_that_nobody_has_ever_seen_into_has_no_cpu_time() -> None:
    lines = scraped(UNKNOWN)
    assert samples(lines, "affinityd_gpu_cpu_seconds_total", "1") == {}
    assert samples(lines, "affinityd_gpu_remote_cpu_seconds_total", "1") == {}


def test_before_the_first_scan_there_are_no_samples_of_it() -> None:
    names = ("affinityd_gpu_audited", "affinityd_scan_", "affinityd_job_")
    assert [line for line in scraped() if line.startswith(names)] == []


def test_how_often_is_looked_is_told_before_the_first_scan() -> None:
    lines = Metrics(lambda: None, scan_interval=15).exposition("")[0].decode().splitlines()
    assert samples(lines, "affinityd_scan_interval_seconds") == {"": 15}


def test_the_age_grows_although_there_is_no_newer_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(lambda: None)
    metrics.scanned(FOUND)
    ages = list[float]()
    for passed in (3.0, 60.0):
        now = FOUND.scan.boot + passed
        monkeypatch.setattr("affinityd.daemon.metrics.registry.since_boot", lambda now=now: now)
        lines = metrics.exposition("")[0].decode().splitlines()
        ages += samples(lines, "affinityd_scan_age_seconds").values()
    assert ages == pytest.approx([3.0, 60.0])


def test_a_new_scan_is_told_and_the_old_one_is_not() -> None:
    metrics = Metrics(lambda: None)
    for audit, audited in ((FOUND, 1), (UNKNOWN, 0)):
        metrics.scanned(audit)
        lines = metrics.exposition("")[0].decode().splitlines()
        assert samples(lines, "affinityd_gpu_audited", "0") == {"": audited}


def test_a_gpu_is_named_by_its_vendor_index_uuid_and_address() -> None:
    (line,) = (it for it in scraped(FOUND) if it.startswith('affinityd_gpu_audited{gpu="1"'))
    labels = 'gpu="1",pci_bus_id="0000:11:00.0",uuid="",vendor="nvidia"'
    assert line == f"affinityd_gpu_audited{{{labels}}} 1.0"


def test_every_metric_of_a_gpu_says_whose_index_it_is() -> None:
    metrics = Metrics(lambda: Node(MACHINE))
    metrics.scanned(FOUND)
    metrics.show("enforce", lambda: enforcement.metrics(enforced()))
    lines = metrics.exposition("")[0].decode().splitlines()
    of_gpus = [line for line in lines if re.search(r'[{,]gpu="', line)]
    assert {line.partition("{")[0] for line in of_gpus} >= {
        *("affinityd_gpu_numa_node", "affinityd_gpu_audited", "affinityd_gpu_numa_mismatch"),
        *("affinityd_gpu_cpu_seconds_total", "affinityd_enforce_left_processes"),
    }
    assert [line for line in of_gpus if 'vendor="nvidia"' not in line] == []


def test_the_daemon_itself_is_measured_as_other_programs_are() -> None:
    lines = scraped()
    (started,) = samples(lines, "process_start_time_seconds").values()
    (files,) = samples(lines, "process_open_fds").values()
    (memory,) = samples(lines, "process_resident_memory_bytes").values()
    assert 0 < started < time.time()
    assert 0 < files < 10_000
    assert memory > 2**20
    assert samples(lines, "process_cpu_seconds_total")[""] > 0


def test_failures_are_counted_from_0_on() -> None:
    unanswered = dict.fromkeys(("topology", "processes"), 0)
    metrics = Metrics(lambda: None, scan_interval=15, nvml_failures=unanswered)

    def told() -> tuple[dict[str, float], dict[str, float]]:
        lines = metrics.exposition("")[0].decode().splitlines()
        names = ("affinityd_nvml_failures_total", "affinityd_scan_failures_total")
        nvml, scans = (samples(lines, name) for name in names)
        return nvml, scans

    assert told() == ({"topology": 0, "processes": 0}, {"": 0})
    report = NvmlReport(None, error="it hangs")
    assert counting(unanswered, "topology", lambda _: report)(1.0) is report
    counting(unanswered, "processes", lambda _: NvmlReport(()))(1.0)
    metrics.scan_failed()
    assert told() == ({"topology": 1, "processes": 0}, {"": 1})


def test_jobs_have_metrics_where_they_may() -> None:
    job_time = {ONE: CpuTime(4.0, 1.0), Job("kubernetes", "b7"): CpuTime(2.0, 0.0)}
    far = process(1, job=ONE, cause="mask", placement="remote")
    audit = Audit(MACHINE, scan(far, job_time=job_time, since={ONE: 1700000000.0}))
    assert not [line for line in scraped(audit) if "affinityd_job_" in line]
    lines = scraped(audit, job_series=1)
    told = {
        name: samples(lines, f"affinityd_job_{name}")
        for name in (
            "gpus",
            "mismatched_gpus",
            "cpu_seconds_total",
            "remote_cpu_seconds_total",
            "numa_mismatch_start_timestamp_seconds",
        )
    }
    assert told == {
        "gpus": {"1,slurm": 1, "other,": 0},
        "mismatched_gpus": {"1,slurm": 1, "other,": 0},
        "cpu_seconds_total": {"1,slurm": 4, "other,": 2},
        "remote_cpu_seconds_total": {"1,slurm": 1, "other,": 0},
        "numa_mismatch_start_timestamp_seconds": {"1,slurm": 1700000000},
    }


@pytest.mark.parametrize("job_id", ['a"b', "a\\b", "a\nb", "a\udcffb", "a\x1b[31m"])
def test_whatever_a_job_is_called_its_label_is_a_line_of_text(job_id: str) -> None:
    audit = Audit(MACHINE, scan(job_time={Job("kubernetes", job_id): CpuTime()}))
    rows = [line for line in scraped(audit, job_series=1) if line.startswith("affinityd_job_gpus{")]
    (row,) = rows
    assert row.isprintable()
    assert row.endswith(',scheduler="kubernetes"} 0.0')


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
def test_there_is_one_end_and_every_metric_is_described_once(accept: str) -> None:
    lines = scraped(FOUND, accept=accept)
    assert lines.count("# EOF") == (accept == OPEN_METRICS)
    assert not accept or lines[-1] == "# EOF"
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert {"affinityd_build_info", "affinityd_build"} & set(described)
    assert "affinityd_gpu_audited" in described


def test_each_scraper_has_its_own_form_whoever_came_before() -> None:
    metrics = Metrics(lambda: None)
    metrics.scanned(FOUND)
    for accept, counter in (
        ("", "affinityd_gpu_cpu_seconds_total"),
        (OPEN_METRICS, "affinityd_gpu_cpu_seconds"),  # whose samples end in _total all the same
        ("", "affinityd_gpu_cpu_seconds_total"),
    ):
        lines = metrics.exposition(accept)[0].decode().splitlines()
        assert f"# TYPE {counter} counter" in lines


@pytest.mark.parametrize(
    "accept", ["text/plain;version=x", "application/openmetrics-text;version=x"]
)
def test_who_asks_for_a_form_that_is_none_gets_the_plain_one(accept: str) -> None:
    assert Metrics(lambda: None).exposition(accept)[1] == Metrics(lambda: None).exposition("")[1]


def test_no_label_is_a_pid_and_none_is_a_name() -> None:
    labels = {name for line in scraped(FOUND) for name in re.findall(r'(\w+)="', line)}
    of_gpus = {"vendor", "gpu", "uuid", "pci_bus_id"}
    assert labels == {*of_gpus, "cause", "placement", "version", "le", "reason"}
