"""`run` where no daemon answers: it takes the CPUs near all of the container's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from tests.support.daemons import Daemon
from tests.support.pods import GPU_2, ONLINE, SHELLS, Pod, only, unreachable


def test_without_anything_to_ask_by_the_files_tell(
    daemon: Daemon, pod: Pod, tmp_path: Path
) -> None:
    told = pod.run(cpus=ONLINE, path=only(tmp_path / "few", "env", "sh", "ls"))
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2
    cause = f"neither curl nor python3 is here to ask {daemon.socket}"
    assert told.lines == [f"affinityd run: {cause}; planned from {pod.to}/gpu"]


@pytest.mark.parametrize(
    ("devices", "said", "cpus"),
    [
        pytest.param(["nvidia5", "nvidia1"], {}, "16-23,80-87,144-151,208-215", id="two GPUs"),
        pytest.param(
            ["nvidia5", "nvidia1"],
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1"},
            "16-23,80-87,144-151,208-215",
            id="whichever of them a rank has",
        ),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "GPU-2"}, GPU_2, id="one by name"),
        pytest.param(["nvidia5"], {"NVIDIA_VISIBLE_DEVICES": "0"}, GPU_2, id="device files first"),
        pytest.param(["nvidia5", "nvidia77"], {}, GPU_2, id="one that is not known"),
        pytest.param(["nvidia77"], {}, None, id="none that is known"),
        pytest.param([], {}, None, id="none at all"),
    ],
)
@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_the_cpus_are_those_near_any_of_the_container_s_gpus(
    pod: Pod, shell: list[str], devices: list[str], said: dict[str, str], cpus: str | None
) -> None:
    pod.has(*devices)
    uuid = (pod.to / "gpu/5.cpulist").read_text()
    (pod.to / "gpu/GPU-2.cpulist").write_text(uuid)
    (pod.to / "gpu/GPU-2.locality").write_text("local\n")
    told = pod.run(cpus=ONLINE, shell=shell, **said, **unreachable(pod))
    assert told.cpus == (None if cpus is None else parse_list(cpus)), told.lines
    assert len(told.lines) == 1


def test_they_are_cut_to_the_cpus_that_the_container_has(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({*range(10, 18), 150, 151, 152}), **unreachable(pod))
    assert told.environment["AFFINITYD_CPULIST"] == "16-17,150-151"
    assert told.environment["AFFINITYD_ALLOWED"] == "10-17,150-152"


def test_without_a_near_cpu_the_command_stays_where_it_is(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({0, 1, 2}), **unreachable(pod))
    assert told.cpus is None
    trouble = "no affinityd is here to be asked"
    reason = f"{trouble}, and in {pod.to}/gpu none of the CPUs 0-2 is near"
    assert told.lines == [f"affinityd run: {reason}; the command runs unpinned"]


@pytest.mark.parametrize(
    ("one", "other", "locality"),
    [
        ("local", "local", "local"),
        ("local", "remote", "remote"),
        ("unknown", "local", "unknown"),
        ("remote", "unknown", "remote"),
    ],
)
def test_the_worst_locality_of_any_gpu_is_told(
    pod: Pod, one: str, other: str, locality: str
) -> None:
    pod.has("nvidia5", "nvidia6")
    (pod.to / "gpu/5.locality").write_text(f"{one}\n")
    (pod.to / "gpu/6.locality").write_text(f"{other}\n")
    told = pod.run(cpus=ONLINE, **unreachable(pod))
    assert told.environment["AFFINITYD_LOCALITY"] == locality
    assert len(told.lines) == 1 + (locality == "remote")


def test_strict_holds_for_the_files_too(pod: Pod) -> None:
    (pod.to / "gpu/5.locality").write_text("remote\n")
    told = pod.run(cpus=ONLINE, AFFINITYD_STRICT="true", **unreachable(pod))
    assert told.cpus is None
    assert f"CPUs {GPU_2} are far, which AFFINITYD_STRICT forbids" in told.lines[0]


def spoil(name: str, text: str | None) -> Callable[[Path], object]:
    return lambda to: (to / name).unlink() if text is None else (to / name).write_text(text)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil("gpu/5.cpulist", None), id="gone"),
        pytest.param(spoil("gpu/5.cpulist", ""), id="empty"),
        pytest.param(spoil("gpu/5.cpulist", "0-x\n"), id="wrong"),
        pytest.param(spoil("gpu/5.cpulist", "\0\x01\n"), id="noise"),
        pytest.param(spoil("gpu/5.locality", None), id="without a locality"),
        pytest.param(spoil("pinning.sh", None), id="without what it sources"),
        pytest.param(spoil("pinning.sh", "if\n"), id="which breaks the shell"),
        pytest.param(spoil("settings", None), id="without settings"),
    ],
)
@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_a_folder_that_is_spoilt_is_no_end_of_a_job(
    pod: Pod, shell: list[str], spoil: Callable[[Path], object]
) -> None:
    spoil(pod.to)
    told = pod.run(cpus=ONLINE, shell=shell, **unreachable(pod))
    assert told.status == 0
    assert "PATH" in told.environment
    if told.cpus is None:
        assert told.lines[-1].endswith("; the command runs unpinned")


def test_a_settings_file_that_breaks_the_shell_is_told(pod: Pod) -> None:
    (pod.to / "settings").write_text("if\n")
    told = pod.run(cpus=ONLINE, shell=["dash"])
    assert told.lines == ["affinityd run: the script broke off; the command runs unpinned"]
