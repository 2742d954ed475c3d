"""`run` where no daemon answers: it takes the CPUs near all of the container's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from tests.support.daemons import Daemon
from tests.support.pods import GPU_2, ONLINE, SHELLS, Pod, only, unreachable

TWO_GPUS = "16-23,80-87,144-151,208-215"


def test_without_a_client_the_files_are_read(daemon: Daemon, pod: Pod, tmp_path: Path) -> None:
    ended = pod.run(cpus=ONLINE, path=only(tmp_path / "few", "env", "sh", "ls"))
    assert ended.environment["AFFINITYD_CPULIST"] == GPU_2
    cause = f"neither curl nor python3 is here to ask {daemon.socket}"
    assert ended.lines == [f"affinityd run: {cause}; planned from {pod.to}/gpu"]


RANK = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize("shell", SHELLS, ids=str)
def test_the_cpus_are_those_near_any_of_the_container_s_gpus(pod: Pod, shell: list[str]) -> None:
    for devices, env, cpus in (
        (["nvidia5", "nvidia1"], RANK, TWO_GPUS),  # whichever of them a rank has
        ([], {"NVIDIA_VISIBLE_DEVICES": "GPU-120000"}, GPU_2),
        (["nvidia5"], {"NVIDIA_VISIBLE_DEVICES": "0"}, GPU_2),  # device files first
        (["nvidia5", "nvidia77"], {}, GPU_2),  # one that is not known
        (["nvidia77"], {}, None),
    ):
        pod.has(*devices)
        ended = pod.run(cpus=ONLINE, shell=shell, **env, **unreachable(pod))
        assert ended.cpus == (None if cpus is None else parse_list(cpus)), ended.lines
        assert len(ended.lines) == 1


def test_a_plan_is_cut_to_the_container_s_cpus(pod: Pod) -> None:
    ended = pod.run(cpus=frozenset({*range(10, 18), 150, 151, 152}), **unreachable(pod))
    assert ended.environment["AFFINITYD_CPULIST"] == "16-17,150-151"
    assert ended.environment["AFFINITYD_ALLOWED"] == "10-17,150-152"
    none = pod.run(cpus=frozenset({0, 1, 2}), **unreachable(pod))
    trouble = "no affinityd is here to be asked"
    reason = f"{trouble}, and in {pod.to}/gpu none of the CPUs 0-2 is near"
    assert none.lines == [f"affinityd run: {reason}; the command runs unpinned"]
    assert none.cpus is None


def test_the_worst_locality_counts_and_strict_forbids_far_gpus(pod: Pod) -> None:
    pod.has("nvidia5", "nvidia6")
    for one, other, locality in (("local", "remote", "remote"), ("remote", "unknown", "remote")):
        (pod.to / "gpu/5.locality").write_text(f"{one}\n")
        (pod.to / "gpu/6.locality").write_text(f"{other}\n")
        ended = pod.run(cpus=ONLINE, **unreachable(pod))
        assert ended.environment["AFFINITYD_LOCALITY"] == locality
        assert len(ended.lines) == 1 + (locality == "remote")
    strict = pod.run(cpus=ONLINE, AFFINITYD_STRICT="true", **unreachable(pod))
    assert strict.cpus is None
    assert "are far, which AFFINITYD_STRICT forbids" in strict.lines[0]


def test_a_gpu_on_an_unknown_node_moves_no_container(pod: Pod) -> None:
    pod.has("nvidia5")
    (pod.to / "gpu/5.locality").write_text("unknown\n")
    ended = pod.run(cpus=ONLINE, **unreachable(pod))
    assert ended.cpus is None
    assert "does not say where its GPU is" in ended.lines[-1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpu/5.cpulist", "\0\x01\n"),
        ("gpu/5.locality", None),
        ("pinning.sh", None),
        ("pinning.sh", "if\n"),  # which breaks the shell
        ("settings", None),
    ],
)
def test_a_job_starts_with_a_damaged_folder(pod: Pod, name: str, text: str | None) -> None:
    (pod.to / name).unlink() if text is None else (pod.to / name).write_text(text)
    for shell in SHELLS:
        ended = pod.run(cpus=ONLINE, shell=shell, **unreachable(pod))
        assert ended.status == 0
        assert "PATH" in ended.environment
        if ended.cpus is None:
            assert ended.lines[-1].endswith("; the command runs unpinned")


def test_a_settings_file_that_breaks_the_shell_is_named(pod: Pod) -> None:
    (pod.to / "settings").write_text("if\n")
    ended = pod.run(cpus=ONLINE, shell=["dash"])
    assert ended.lines == ["affinityd run: the script broke off; the command runs unpinned"]
