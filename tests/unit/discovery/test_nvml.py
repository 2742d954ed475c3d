"""NVML's answers in JSON: nothing is lost, and what is no report is refused in one line."""

from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery.nvml import (
    GpuProcesses,
    NvmlGpu,
    NvmlProcess,
    NvmlReport,
    ProcessReport,
    read_report,
)
from affinityd.json_codec import dumps

LOST = "GPU is lost"
A100 = NvmlGpu(
    *(0, "GPU-0", "0000:07:00.0", 3, "NVIDIA A100-SXM4-40GB", ("MIG-0", "MIG-1")),
    node_cpus=parse_list("48-63,176-191"),
    socket_cpus=parse_list("0-63,128-191"),
    nvlinks={"0000:c8:00.0": 12},
    persistence=True,
)
FULL = NvmlReport(gpus=(A100, NvmlGpu(index=1, error=LOST)), driver_version="550.54.15")
PROCESSES = (NvmlProcess(4711, "compute", 1 << 40, "MIG-0"), NvmlProcess(4712, "mps"))
OF_GPU = GpuProcesses(0, "GPU-0", "0000:07:00.0", PROCESSES)
CHANGING = "GPU 1's MIG mode will be enabled"


Kind = type[NvmlReport | ProcessReport]


def read(kind: Kind, text: str) -> NvmlReport | ProcessReport:
    is_nvml = issubclass(kind, NvmlReport)
    return read_report(NvmlReport, text) if is_nvml else read_report(ProcessReport, text)


@pytest.mark.parametrize(
    "report",
    [
        FULL,
        NvmlReport(gpus=()),
        NvmlReport(None, error="Driver Not Loaded", remedy="load it"),
        ProcessReport(gpus=(OF_GPU, GpuProcesses(index=1, error=LOST)), changing=CHANGING),
        ProcessReport(gpus=None, error="Driver Not Loaded"),
    ],
)
def test_a_report_survives_being_written_and_read(report: NvmlReport | ProcessReport) -> None:
    text = dumps(report)
    assert (read(type(report), text), text.count("\n")) == (report, 0)


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        (NvmlReport, "NVRM: oops", "is 'NVRM: oops', not JSON"),
        (NvmlReport, '{"gpus": [{}]}', ".gpus[0] has no 'index'"),
        (NvmlReport, '{"gpus": [{"index": 0}, {"index": 0}]}', " has two GPUs of one index"),
        (NvmlReport, '{"gpus": [{"index": 0, "node_cpus": "8-"}]}', "'8-' is not a CPU"),
        (ProcessReport, "NVRM: oops", "is 'NVRM: oops', not JSON"),
        (ProcessReport, '{"gpus": [{"index": 0, "processes": [{}]}]}', "[0] has no 'pid'"),
    ],
)
def test_a_malformed_report_is_refused_in_one_line(kind: Kind, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"\ANVML's report.*\Z") as refusal:
        read(kind, text)
    assert complaint in str(refusal.value)
