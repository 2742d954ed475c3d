from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery.nvml.report import (
    GpuProcesses,
    NvmlGpu,
    NvmlProcess,
    NvmlReport,
    ProcessReport,
    read_report,
)
from affinityd.json_codec import dumps

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
    assert read_report(NvmlReport, dumps(report)) == report


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
    assert read_report(ProcessReport, dumps(report)) == report


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("NVRM: oops", "NVML's report is 'NVRM: oops', not JSON", id="no JSON"),
        pytest.param('{"gpus": [{}]}', "gpus[0] has no 'index'", id="no index"),
        pytest.param(
            '{"gpus": [{"index": 0, "processes": [{"pid": -1}]}]}',
            "gpus[0].processes[0].pid is -1, not a number from 0",
            id="a pid that is none",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "processes": [{"pid": true}]}]}',
            "gpus[0].processes[0].pid is True, not a whole number",
            id="a truth instead of a pid",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "processes": [{"pid": 7}]}]}',
            "gpus[0].processes[0] has no 'kind'",
            id="no kind",
        ),
    ],
)
def test_garbage_is_no_report_of_processes(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^NVML's report") as refusal:
        read_report(ProcessReport, text)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_cpu_sets_are_written_as_cpulists_on_one_line() -> None:
    text = dumps(FULL)
    assert '"node_cpus": "48-63,176-191"' in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "NVML's report is '', not JSON", id="nothing"),
        pytest.param("NVRM: oops", "NVML's report is 'NVRM: oops', not JSON", id="no JSON"),
        pytest.param("[" * 100_000, "nested too deeply", id="JSON without an end"),
        pytest.param("[]", "is [], not an object", id="another JSON"),
        pytest.param('{"gpus": 8}', "gpus is 8, not a list", id="a number of GPUs"),
        pytest.param(f'{{"gpus": {8**999}}}', "gpus is 15", id="a huge number"),
        pytest.param('{"gpus": [8]}', "gpus[0] is 8, not an object", id="a GPU that is a number"),
        pytest.param('{"gpus": [{}]}', "gpus[0] has no 'index'", id="a GPU without index"),
        pytest.param(
            '{"gpus": [{"index": 0, "uuid": 7}]}',
            "gpus[0].uuid is 7, not a string",
            id="a numeric UUID",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "mig": [7]}]}',
            "gpus[0].mig[0] is 7, not a string",
            id="a numeric MIG",
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "persistence": 1}]}',
            "gpus[0].persistence is 1, not true or false",
            id="a number instead of a truth",
        ),
        pytest.param(
            '{"gpus": [{"index": 0}, {"index": 0}]}', "two GPUs of one index", id="an index twice"
        ),
        pytest.param(
            '{"gpus": [{"index": 0, "node_cpus": "8-"}]}',
            "gpus[0].node_cpus: '8-' is not a CPU",
            id="a bad cpulist",
        ),
    ],
)
def test_garbage_is_refused_in_one_line_that_quotes_it(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^NVML's report") as refusal:
        read_report(NvmlReport, text)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)
