from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery.nvml.process_report import GpuProcesses, NvmlProcess, ProcessReport
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport

FULL = NvmlReport(
    gpus=(
        NvmlGpu(
            index=0,
            uuid="GPU-0",
            pci_bus_id="0000:07:00.0",
            minor=3,
            model="NVIDIA A100-SXM4-40GB",
            mig=("MIG-0", "MIG-1"),
            node_cpus=parse_list("48-63,176-191"),
            socket_cpus=parse_list("0-63,128-191"),
            persistence=True,
        ),
        NvmlGpu(index=1, error="GPU is lost"),
    ),
    driver_version="550.54.15",
)


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(FULL, id="two GPUs, one of them lost"),
        pytest.param(NvmlReport(gpus=()), id="a driver and no GPU"),
        pytest.param(NvmlReport(None, error="Driver Not Loaded", remedy="load it"), id="no answer"),
    ],
)
def test_a_report_survives_being_written_and_read(report: NvmlReport) -> None:
    assert NvmlReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(
            ProcessReport(
                gpus=(
                    GpuProcesses(
                        index=0,
                        uuid="GPU-0",
                        pci_bus_id="0000:07:00.0",
                        processes=(
                            NvmlProcess(4711, "compute", 1 << 40, "MIG-0"),
                            NvmlProcess(4712, "mps"),
                        ),
                    ),
                    GpuProcesses(index=1, error="GPU is lost"),
                ),
                changing="GPU 1's MIG mode is to be enabled",
            ),
            id="two GPUs, one of them lost",
        ),
        pytest.param(ProcessReport(gpus=None, error="Driver Not Loaded"), id="no answer"),
    ],
)
def test_a_report_of_processes_survives_being_written_and_read(report: ProcessReport) -> None:
    assert ProcessReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("NVRM: oops", "'NVRM: oops' is not NVML's list of processes", id="no JSON"),
        pytest.param('{"gpus": [{}]}', "index should be int, not None", id="no index"),
        pytest.param(
            '{"gpus": [{"index": 0, "processes": [{"pid": -1}]}]}',
            "pid should be 0 or larger, not -1",
            id="a pid that is none",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "processes": [{"pid": true}]}]}',
            "pid should be int, not True",
            id="a truth instead of a pid",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "processes": [{"pid": 7}]}]}',
            "kind should be str, not None",
            id="no kind",
        ),
    ],
)
def test_garbage_is_no_report_of_processes(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="is not NVML's list of processes") as refusal:
        ProcessReport.from_json(text)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_cpu_sets_are_written_as_cpulists_on_one_line() -> None:
    text = FULL.to_json()
    assert '"node_cpus": "48-63,176-191"' in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "'' is not an NVML report", id="nothing"),
        pytest.param("NVRM: oops", "'NVRM: oops' is not an NVML report", id="no JSON"),
        pytest.param("[" * 100_000, "recursion", id="JSON without an end"),
        pytest.param("[]", "it should be dict, not []", id="another JSON"),
        pytest.param('{"gpus": 8}', "gpus should be list, not 8", id="a number of GPUs"),
        pytest.param(f'{{"gpus": {8**999}}}', "gpus should be list, not 15", id="a huge number"),
        pytest.param('{"gpus": [8]}', "a GPU should be dict, not 8", id="a GPU that is a number"),
        pytest.param('{"gpus": [{}]}', "index should be int, not None", id="a GPU without index"),
        pytest.param(
            '{"gpus": [{"index": 0, "uuid": 7}]}', "uuid should be str, not 7", id="a numeric UUID"
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "mig": [7]}]}', "mig should be str, not 7", id="a numeric MIG"
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "persistence": 1}]}',
            "persistence should be bool, not 1",
            id="a number instead of a truth",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "node_cpus": "8-"}]}', "'8-' is not a CPU", id="a bad cpulist"
        ),
    ],
)
def test_garbage_is_refused_in_one_line_that_quotes_it(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="is not an NVML report") as refusal:
        NvmlReport.from_json(text)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)
