"""The answers that pynvml gets from a real libnvidia-ml.so.1, in a real child process."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cpuset import MAX_CPUS, format_list, parse_list
from affinityd.discovery import nvml
from affinityd.discovery.nvml import (
    GpuProcesses,
    NvmlGpu,
    NvmlLoad,
    NvmlProcess,
    NvmlReport,
    read_report,
)
from affinityd.discovery.nvml.query import INIT_REMEDIES, NO_LIST, _online
from affinityd.discovery.nvml.query import query_gpus as query
from tests.support.daemons import PATIENCE, eventually, open_files
from tests.support.paths import REPOSITORY
from tests.support.shared_objects import environment

Facts = Callable[[str], Path]  #: text → the file that NVML holds open

GPU = "uuid GPU-0\n pci 00000000:07:00.0\n minor 3"
KNOWN = NvmlGpu(0, "GPU-0", "0000:07:00.0", 3)
NOTHING = NvmlGpu(0)
LOST = "GPU is lost"
NOT_UTF_8 = "'utf-8' codec can't decode byte 0xff in position 4: invalid start byte"


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Make NVML answer from a text, in the format of libnvidia_ml.c."""

    def write(text: str) -> Path:
        device = tmp_path / "nvidiactl"
        device.touch()
        for name, value in environment(f"device {device}\n{text}", tmp_path).items():
            monkeypatch.setenv(name, value)
        return device

    return write


def holders(file: Path) -> set[int]:
    processes = (int(it.name) for it in Path("/proc").iterdir() if it.name.isdigit())
    return {process for process in processes if file in open_files(process)}


def test_all_that_a_plan_needs_is_read_and_a_broken_gpu_hides_no_other_gpu(facts: Facts) -> None:
    full = f"{GPU}\n model NVIDIA A100\n node 48-63,176-191"
    named = replace(KNOWN, model="NVIDIA A100", node_cpus=parse_list("48-63,176-191"))
    rows = (
        (full, named),
        ("pci 00010000:0F:00.0", replace(NOTHING, pci_bus_id="10000:0f:00.0")),
        ("node 4000-4095,8191", replace(NOTHING, node_cpus=parse_list("4000-4095,8191"))),
        # What is lacking is no fault: a GPU that supports nothing, a driver older than MIG, a GPU
        # without device file.
        ("", NOTHING),
        ("fail nvmlDeviceGetMigMode 13", NOTHING),
        ("fail nvmlDeviceGetMinorNumber 6", NOTHING),
        # Only MIG devices that exist are reported; without MIG, no slot is queried.
        ("mig off\n fail nvmlDeviceGetMaxMigDeviceCount 999", NOTHING),
        ("mig MIG-0\n mig\n mig MIG-2", replace(NOTHING, mig=("MIG-0", "MIG-2"))),
        # Broken GPUs: lost, not to be opened, lost meanwhile, in need of a reset, nonsensical.
        (f"{GPU}\n fail nvmlDeviceGetHandleByIndex_v2 15", NvmlGpu(0, error=LOST)),
        ("fail nvmlDeviceGetHandleByIndex_v2 4", NvmlGpu(0, error="Insufficient Permissions")),
        (f"{GPU}\n fail nvmlDeviceGetUUID 15", replace(KNOWN, uuid=None, error=LOST)),
        (f"{GPU}\n fail nvmlDeviceGetMigMode 16", replace(KNOWN, error="GPU requires restart")),
        ("uuid GPU-\udcff\n pci nowhere", replace(NOTHING, error=NOT_UTF_8)),
    )
    facts("\n".join(["driver 550.54.15", *(f"gpu\n {lines}" for lines, _ in rows)]))
    gpus = tuple(replace(gpu, index=index) for index, (_, gpu) in enumerate(rows))
    assert query() == NvmlReport(gpus, driver_version="550.54.15")


@pytest.mark.parametrize(
    ("failure", "error", "remedy"),
    [
        ("InitWithFlags 9", "did not start: Driver Not Loaded", INIT_REMEDIES[9]),
        ("InitWithFlags 777", "did not start: An error that this library has no words for", None),
        ("DeviceGetCount_v2 999", "did not count the GPUs: Unknown Error", None),
        ("Shutdown crash", "crashed: Segmentation fault", None),
    ],
)
def test_a_failure_has_a_remedy(facts: Facts, failure: str, error: str, remedy: str | None) -> None:
    device = facts(f"fail nvml{failure}\ngpu")
    assert query() == NvmlReport(None, error=f"NVML {error}", remedy=remedy)
    assert not holders(device)


def test_a_report_names_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not an ELF file\n" * 100)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    error = "NVML did not start: NVML Shared Library Not Found"
    assert query() == NvmlReport(gpus=None, error=error, remedy=INIT_REMEDIES[12])
    without = [folder for folder in sys.path if not Path(folder, "pynvml.py").exists()]
    monkeypatch.setattr(sys, "path", without)
    report = query()
    assert report.error == "NVML needs nvidia-ml-py, which is not installed"
    assert "affinityd's extra nvml" in (report.remedy or "")


def test_the_mask_of_the_caller_does_not_change_the_answer(facts: Facts) -> None:
    online = _online()
    facts(f"masked\ngpu\n node {format_list(online)}")
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        (gpu,) = query().gpus or ()
        assert os.sched_getaffinity(0) == {min(mask)}, "the asker's own mask was changed"
    finally:
        os.sched_setaffinity(0, mask)
    assert gpu.node_cpus == (online)


def test_a_child_that_may_not_run_on_every_cpu_reports_no_affinity(facts: Facts) -> None:
    """A CPU number above any kernel's stands for a CPU outside the caller's cpuset."""
    facts("gpu\n uuid GPU-0\n node 48-63")
    code = (
        "from affinityd.discovery.nvml import query as nvml; "
        f"nvml._online = lambda: frozenset({{0, {MAX_CPUS - 1}}}); nvml.main()"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY, text=True)
    assert read_report(NvmlReport, printed).gpus == (replace(NOTHING, uuid="GPU-0"),)


@pytest.mark.parametrize("actions", [["helper", "hang"], ["helper"]])
def test_a_hanging_nvml_is_killed(facts: Facts, actions: list[str]) -> None:
    device = facts("\n".join(f"fail nvmlDeviceGetCount_v2 {action}" for action in actions))
    assert query(timeout=1) == NvmlReport(
        gpus=None, error="NVML did not answer in time", is_late=True
    )
    eventually(lambda: not holders(device), "no process outlives the asking")


def test_only_the_child_ever_holds_the_driver_open(facts: Facts, tmp_path: Path) -> None:
    device = facts(f"fail nvmlDeviceGetCount_v2 until {tmp_path}/seen\ngpu")
    with ThreadPoolExecutor(1) as other:
        asking = other.submit(query, PATIENCE)
        eventually(lambda: holders(device), "the driver is open")
        assert os.getpid() not in holders(device)
        assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()
        (tmp_path / "seen").touch()
        assert asking.result().gpus == (NOTHING,)
    assert not holders(device)


def test_a_child_whose_parent_was_killed_exits_by_itself(facts: Facts) -> None:
    device = facts("fail nvmlDeviceGetCount_v2 hang")
    code = "from affinityd.discovery.nvml.query import query_gpus; query_gpus(1)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY) as asker:
        eventually(lambda: holders(device), "the driver is open")
        asker.kill()
    eventually(lambda: not holders(device), "the child ends")


def test_the_child_runs_no_code_of_the_caller_s_environment(
    facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts("fail nvmlInitWithFlags print\ngpu")  # what the library prints is no answer
    for module in ("pynvml", "signal", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("import os; os._exit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert query().gpus == (NOTHING,)


# The processes on NVIDIA's GPUs, as pynvml gets them in a real child process.

QUERY = """
from affinityd.discovery.nvml.query import query_processes
from affinityd.json_codec import dumps
print(dumps(query_processes(10)))
"""


def query_processes() -> nvml.ProcessReport:
    """Query in a new Python: a fork keeps the library path with which its parent was started."""
    printed = subprocess.check_output([sys.executable, "-c", QUERY], cwd=REPOSITORY, text=True)
    return read_report(nvml.ProcessReport, printed)


ELEVEN = NvmlProcess(11, "compute", 1)
NO_PROCESS = GpuProcesses(0)
ALONE = replace(NO_PROCESS, processes=(ELEVEN,))
COMPUTE, GRAPHICS, MPS = (
    f"fail nvmlDeviceGet{name}RunningProcesses" for name in ("Compute", "Graphics", "MPSCompute")
)
ONE = "process compute 11 1"
ALL = "process compute 11 1048576\n process graphics 12 ?\n process mps 13 4096"
LISTS = ("compute", 1048576), ("graphics", None), ("mps", 4096)
ANONYMOUS = replace(
    NO_PROCESS, processes=tuple(NvmlProcess(pid, *it) for pid, it in enumerate(LISTS, 11))
)
NAMED = replace(ANONYMOUS, uuid="GPU-0", pci_bus_id="10000:0f:00.0")
MIG = f"mig MIG-0\n {ONE}\n process compute 12 2\n mig\n mig MIG-2\n process compute 11 3"
OF_MIG = tuple(
    NvmlProcess(pid, "compute", used, mig)
    for pid, used, mig in ((11, 1, "MIG-0"), (12, 2, "MIG-0"), (11, 3, "MIG-2"))
)
HUNDREDS = range(1, 401)
OF_HUNDREDS = "\n ".join(f"process compute {pid} 1" for pid in HUNDREDS)
HUNDREDS_OF = replace(NO_PROCESS, processes=tuple(replace(ELEVEN, pid=pid) for pid in HUNDREDS))


def failed(error: str) -> GpuProcesses:
    return replace(NO_PROCESS, error=error)


def test_the_processes_of_every_gpu_that_answers_are_listed(facts: Facts) -> None:
    rows = (
        (f"uuid GPU-0\n pci 00010000:0F:00.0\n {ALL}", NAMED),
        ("uuid GPU-\x070", replace(NO_PROCESS, uuid="GPU-?0")),  # as the topology names it
        (OF_HUNDREDS, HUNDREDS_OF),
        # Each MIG device names its own processes; a divided GPU without a MIG device has none.
        (MIG, replace(NO_PROCESS, processes=OF_MIG)),
        (f"mig\n {COMPUTE}_v3 4", NO_PROCESS),
        (f"{COMPUTE}_v3 13", failed(NO_LIST)),  # the driver is old
        # A GPU may lack graphics, MPS or MIG; a virtual GPU has no lists of processes.
        (f"{ONE}\n {GRAPHICS}_v3 3\n {MPS}_v3 3\n fail nvmlDeviceGetMigMode 13", ALONE),
        (f"{COMPUTE}_v3 3", failed(NO_LIST)),
        # A half answer, and no answer.
        (f"{ONE}\n {GRAPHICS}_v3 999", replace(ALONE, error="Unknown Error", is_lost=True)),
        (f"{COMPUTE}_v3 4", failed("Insufficient Permissions")),
        ("fail nvmlDeviceGetUUID 16", replace(failed("GPU requires restart"), is_lost=True)),
        (
            f"{ONE}\n fail nvmlDeviceGetHandleByIndex_v2 15",
            replace(failed("GPU is lost"), is_lost=True),
        ),
        # How busy the GPU is; an error there affects no other fact.
        (f"load 37 {2**30} {2**36}", replace(NO_PROCESS, load=NvmlLoad(37, 2**30, 2**36))),
        (
            f"load 37 {2**30} {2**36}\n fail nvmlDeviceGetUtilizationRates 999",
            replace(NO_PROCESS, load=NvmlLoad(None, 2**30, 2**36)),
        ),
        (f"mig off\n {ONE}", ALONE),
    )
    facts("\n".join(f"gpu\n {lines}" for lines, _ in rows))
    gpus = tuple(replace(gpu, index=index) for index, (_, gpu) in enumerate(rows))
    assert query_processes() == nvml.ProcessReport(gpus)
