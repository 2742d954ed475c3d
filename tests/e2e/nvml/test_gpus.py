"""Every answer here comes out of a real libnvidia-ml.so.1, through pynvml, in a real child."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.cpuset import MAX_CPUS, CpuSet, format_list, parse_list
from affinityd.discovery.nvml.gpus import _may_run_on, _online, query
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport, read_report
from affinityd.discovery.nvml.session import REMEDIES, ask
from affinityd.errors import NVML_EXTRA
from tests.support.daemons import PATIENCE, open_files
from tests.support.nvml.shared_object import environment
from tests.support.paths import REPOSITORY

FIRST = """
gpu
  uuid GPU-0
  pci 00000000:07:00.0
  minor 3
  model NVIDIA A100-SXM4-40GB
  node 48-63,176-191
  socket 0-63,128-191
  nvlink 00010000:0F:00.0
  nvlink
  nvlink 00010000:0F:00.0
"""
SECOND = """
gpu
  uuid GPU-1
  pci 00010000:0F:00.0
  minor 0
  model NVIDIA A100-SXM4-40GB
"""

Facts = Callable[[str], Path]  # text → the file that NVML holds open


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Let NVML answer from a text, in the words of nvml/libnvidia_ml.c."""

    def write(text: str) -> Path:
        device = tmp_path / "nvidiactl"
        device.touch()
        for name, value in environment(f"device {device}\n{text}", tmp_path).items():
            monkeypatch.setenv(name, value)
        return device

    return write


def holders(file: Path) -> set[int]:
    """Return the processes that hold a file open."""
    processes = (int(it.name) for it in Path("/proc").iterdir() if it.name.isdigit())
    return {process for process in processes if file in open_files(process)}


def until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Wait for a condition; say whether it came true."""
    deadline = time.monotonic() + seconds
    while not (met := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


def gpus_of(report: NvmlReport) -> tuple[NvmlGpu, ...]:
    assert report.gpus is not None, report.error
    return report.gpus


@functools.cache
def confined() -> bool:
    """Say whether these tests may run on a part of the machine's CPUs only."""
    mask = os.sched_getaffinity(0)
    try:
        return not _may_run_on(_online())
    finally:
        os.sched_setaffinity(0, mask)


def trusted(cpulist: str) -> CpuSet:
    return frozenset() if confined() else parse_list(cpulist)


def test_everything_that_a_plan_needs_is_read(facts: Facts) -> None:
    facts(f"driver 550.54.15\n{FIRST} {SECOND}")
    assert query() == NvmlReport(
        gpus=(
            NvmlGpu(
                index=0,
                uuid="GPU-0",
                pci_bus_id="0000:07:00.0",
                minor=3,
                model="NVIDIA A100-SXM4-40GB",
                node_cpus=trusted("48-63,176-191"),
                socket_cpus=trusted("0-63,128-191"),
                nvlinks={"10000:0f:00.0": 2},
            ),
            NvmlGpu(
                index=1,
                uuid="GPU-1",
                pci_bus_id="10000:0f:00.0",
                minor=0,
                model="NVIDIA A100-SXM4-40GB",
                nvlinks={},
            ),
        ),
        driver_version="550.54.15",
    )


@pytest.mark.parametrize(
    ("slots", "uuids"),
    [
        pytest.param("", (), id="a GPU that cannot be divided"),
        pytest.param("mig off", (), id="a GPU that is not divided"),
        pytest.param(
            "mig off\n fail nvmlDeviceGetMaxMigDeviceCount 999",
            (),
            id="a GPU that is not divided is not asked for slots",
        ),
        pytest.param("mig\n mig\n", (), id="empty slots only"),
        pytest.param("mig MIG-0\n mig\n mig MIG-2", ("MIG-0", "MIG-2"), id="a gap between two"),
    ],
)
def test_mig_devices_are_those_that_exist(facts: Facts, slots: str, uuids: tuple[str, ...]) -> None:
    facts(f"{FIRST} {slots}")
    (gpu,) = gpus_of(query())
    assert (gpu.mig, gpu.error) == (uuids, None)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param(
            "nvmlInitWithFlags 18",
            "NVML did not start: RM has detected an NVML/RM version mismatch; "
            "after a driver upgrade, reload its modules or reboot",
            id="a library newer than the loaded driver",
        ),
        pytest.param(
            "nvmlInitWithFlags 9",
            "NVML did not start: Driver Not Loaded; load the driver: modprobe nvidia",
            id="no driver loaded",
        ),
        pytest.param(
            "nvmlInitWithFlags 4",
            "NVML did not start: Insufficient Permissions; "
            "ask as root, or as a user who may open /dev/nvidiactl",
            id="no permission",
        ),
        pytest.param(
            "nvmlInitWithFlags 777",
            "NVML did not start: An error that this library has no words for",
            id="an error that pynvml does not know",
        ),
        pytest.param(
            "nvmlDeviceGetCount_v2 999",
            "NVML did not count the GPUs: Unknown Error",
            id="GPUs that cannot be counted",
        ),
        pytest.param("nvmlInitWithFlags crash", "NVML crashed: Segmentation fault", id="a crash"),
        pytest.param(
            "nvmlShutdown crash", "NVML crashed: Segmentation fault", id="a crash at the end"
        ),
    ],
)
def test_a_failure_is_one_line_that_says_what_would_be_right(
    facts: Facts, failure: str, error: str
) -> None:
    device = facts(f"fail {failure} {FIRST}")
    report = query()
    assert (report.gpus, report.said) == (None, error)
    assert not holders(device)


def test_what_the_library_writes_to_stdout_is_no_part_of_the_report(facts: Facts) -> None:
    facts(f"fail nvmlInitWithFlags print {FIRST}")
    report = query()
    assert (len(gpus_of(report)), report.error) == (1, None)


def test_what_is_no_report_is_told_on_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "noisy.py").write_text("def main(): print('noise\\n' * 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    report = ask("noisy", NvmlReport, 10)
    assert str(report.error).startswith("NVML's child printed no report: NVML's report is 'noise")
    assert "\n" not in str(report.error)


def test_a_driver_that_hides_its_version_still_answers(facts: Facts) -> None:
    facts(FIRST)
    report = query()
    assert (report.driver_version, len(gpus_of(report))) == (None, 1)


def test_a_library_that_cannot_be_loaded_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not an ELF file\n" * 100)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert query() == NvmlReport(
        gpus=None,
        error="NVML did not start: NVML Shared Library Not Found",
        remedy=REMEDIES[12],
    )


def test_without_pynvml_the_report_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if not Path(folder, "pynvml.py").exists()]
    )
    assert query() == NvmlReport(
        gpus=None,
        error="NVML needs nvidia-ml-py, which is not installed",
        remedy=NVML_EXTRA,
    )


@pytest.mark.parametrize(
    ("failure", "lost"),
    [
        pytest.param(
            "nvmlDeviceGetHandleByIndex_v2 15",
            NvmlGpu(index=0, error="GPU is lost"),
            id="a GPU that is lost",
        ),
        pytest.param(
            "nvmlDeviceGetUUID 15",
            NvmlGpu(index=0, pci_bus_id="0000:07:00.0", minor=3, nvlinks={}, error="GPU is lost"),
            id="a GPU that is being lost",
        ),
        pytest.param(
            "nvmlDeviceGetNvLinkState 15",
            NvmlGpu(0, "GPU-0", "0000:07:00.0", 3, error="GPU is lost"),
            id="a GPU whose links cannot be asked for",
        ),
        pytest.param(
            "nvmlDeviceGetMigMode 16",
            NvmlGpu(
                index=0,
                uuid="GPU-0",
                pci_bus_id="0000:07:00.0",
                minor=3,
                nvlinks={},
                error="GPU requires restart",
            ),
            id="a GPU that needs a reset",
        ),
        pytest.param(
            "nvmlDeviceGetHandleByIndex_v2 4",
            NvmlGpu(index=0, error="Insufficient Permissions"),
            id="a GPU that the caller may not open",
        ),
    ],
)
def test_a_broken_gpu_hides_no_other(facts: Facts, failure: str, lost: NvmlGpu) -> None:
    facts(f"gpu\n uuid GPU-0\n pci 00000000:07:00.0\n minor 3\n fail {failure} {SECOND}")
    broken, sound = gpus_of(query())
    assert broken == lost
    assert (sound.index, sound.uuid, sound.error) == (1, "GPU-1", None)


def test_a_gpu_whose_texts_are_garbage_hides_no_other(facts: Facts, tmp_path: Path) -> None:
    facts("")
    garbage = b"gpu\n uuid GPU-\xff\n pci nowhere\n minor 3\n"
    (tmp_path / "nvml.facts").write_bytes(garbage + SECOND.encode())
    broken, sound = gpus_of(query())
    assert (broken.uuid, broken.pci_bus_id, broken.minor) == (None, None, 3)
    assert "can't decode byte 0xff" in str(broken.error)
    assert sound.uuid == "GPU-1"


@pytest.mark.parametrize(
    "facts_of_gpu",
    [
        pytest.param("gpu", id="a GPU that supports nothing"),
        pytest.param("gpu\n fail nvmlDeviceGetMigMode 13", id="a driver older than MIG"),
        pytest.param("gpu\n fail nvmlDeviceGetMinorNumber 6", id="a GPU without device file"),
    ],
)
def test_what_is_lacking_is_no_fault(facts: Facts, facts_of_gpu: str) -> None:
    facts(facts_of_gpu)
    assert gpus_of(query()) == (NvmlGpu(index=0, nvlinks={}),)


TO_SWITCHES = "gpu\n nvlink 00000000:C8:00.0\n nvlink 00000000:C8:00.0\n nvlink 00000001:00:00.0"


@pytest.mark.parametrize(
    ("facts_of_gpu", "nvlinks"),
    [
        pytest.param("gpu", {}, id="a GPU without NVLink"),
        pytest.param("gpu\n nvlink\n nvlink", {}, id="links that are all down"),
        pytest.param(
            TO_SWITCHES, {"0000:c8:00.0": 2, "0001:00:00.0": 1}, id="links to two switches"
        ),
        pytest.param(
            f"{TO_SWITCHES}\n fail nvmlDeviceGetNvLinkState 13", None, id="an NVML without the call"
        ),
        pytest.param(
            f"{TO_SWITCHES}\n fail nvmlDeviceGetNvLinkRemotePciInfo_v2 13",
            None,
            id="an NVML that does not tell where a link leads",
        ),
        pytest.param(
            f"{TO_SWITCHES}\n fail nvmlDeviceGetNvLinkRemotePciInfo_v2 3",
            None,
            id="a virtual machine that is not told where a link leads",
        ),
    ],
)
def test_the_links_that_are_up_are_counted_by_where_they_lead(
    facts: Facts, facts_of_gpu: str, nvlinks: dict[str, int] | None
) -> None:
    facts(facts_of_gpu)
    (gpu,) = gpus_of(query())
    assert (gpu.nvlinks, gpu.error) == (nvlinks, None)


def test_a_gpu_without_nvlink_is_asked_for_one_link_alone(facts: Facts) -> None:
    facts("gpu\n fail nvmlDeviceGetNvLinkState slow")
    assert gpus_of(query(timeout=5)) == (NvmlGpu(index=0, nvlinks={}),)


@pytest.mark.parametrize("count", ["-1", "true", '"4"', "null"])
def test_a_report_with_no_number_of_links_is_none(count: str) -> None:
    with pytest.raises(ValueError, match=r"nvlinks\['0000:07:00.0'\] is [^\n]*$"):
        read_report(
            NvmlReport, f'{{"gpus": [{{"index": 0, "nvlinks": {{"0000:07:00.0": {count}}}}}]}}'
        )


def test_cpus_far_beyond_a_thousand_fit_the_mask(facts: Facts) -> None:
    facts("gpu\n node 4000-4095,8191")
    (gpu,) = gpus_of(query())
    assert (gpu.node_cpus, gpu.error) == (trusted("4000-4095,8191"), None)


def test_a_narrow_mask_of_the_asker_narrows_no_answer(facts: Facts) -> None:
    online = _online()
    facts(f"masked\ngpu\n node {format_list(online)}")
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        (gpu,) = gpus_of(query())
        assert os.sched_getaffinity(0) == {min(mask)}, "the asker's own mask was changed"
    finally:
        os.sched_setaffinity(0, mask)
    assert gpu.node_cpus == (frozenset() if confined() else online)


def test_a_child_that_may_not_run_on_every_cpu_names_none(facts: Facts) -> None:
    """An online CPU that no kernel has stands for one that the asker's cpuset leaves out."""
    facts(FIRST)
    code = (
        "from affinityd.discovery.nvml import gpus as nvml; "
        f"nvml._online = lambda: frozenset({{0, {MAX_CPUS - 1}}}); nvml.main()"
    )
    confined_child = subprocess.check_output(
        [sys.executable, "-c", code], cwd=REPOSITORY, text=True
    )
    (gpu,) = gpus_of(read_report(NvmlReport, confined_child))
    assert (gpu.uuid, gpu.node_cpus, gpu.socket_cpus) == ("GPU-0", frozenset(), frozenset())


@pytest.mark.parametrize(
    "actions",
    [
        pytest.param(["hang"], id="NVML hangs"),
        pytest.param(["helper", "hang"], id="NVML and what it started hang"),
        pytest.param(["helper"], id="only what NVML started hangs"),
    ],
)
def test_a_hang_ends_in_time_and_leaves_nothing_behind(facts: Facts, actions: list[str]) -> None:
    device = facts("\n".join(f"fail nvmlDeviceGetCount_v2 {action}" for action in actions))
    started = time.monotonic()
    assert query(timeout=1) == NvmlReport(gpus=None, error="NVML did not answer within 1 s")
    assert time.monotonic() - started < PATIENCE
    assert until(lambda: not holders(device)), "a process outlived the asking"


def test_only_the_child_ever_holds_the_driver_open(facts: Facts) -> None:
    device = facts("fail nvmlDeviceGetCount_v2 hang")
    asking = threading.Thread(target=query, args=(2,))
    asking.start()
    assert until(lambda: holders(device)), "nobody opened the driver"
    assert os.getpid() not in holders(device)
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()
    asking.join()
    assert not holders(device)


def test_a_child_whose_asker_was_killed_ends_by_itself(facts: Facts) -> None:
    device = facts("fail nvmlDeviceGetCount_v2 hang")
    code = "from affinityd.discovery.nvml.gpus import query; query(1)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY) as asker:
        assert until(lambda: holders(device)), "nobody opened the driver"
        asker.kill()
    assert until(lambda: not holders(device)), "the child outlived its asker"


def test_neither_working_folder_nor_environment_brings_code_in(
    facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts(FIRST)
    for module in ("pynvml", "signal", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("import os; os._exit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert len(gpus_of(query())) == 1
