"""`run` where no daemon answers: it plans from what `affinityd init` has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from tests.daemons import Daemon
from tests.pods import GPU_2, ONLINE, Pod, only, unreachable

pytestmark = pytest.mark.pods


def test_without_anything_to_ask_by_the_table_tells(
    daemon: Daemon, pod: Pod, tmp_path: Path
) -> None:
    told = pod.run(cpus=ONLINE, path=only(tmp_path / "few", "env", "sh"))
    assert told.environment["AFFINITYD_CPULIST"] == GPU_2
    cause = f"neither curl nor python3 is here to ask {daemon.socket}"
    assert told.lines == [f"affinityd run: {cause}; planned from {pod.to}/table"]


def test_the_table_is_cut_to_the_cpus_that_the_container_has(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({*range(10, 18), 150, 151, 152}), **unreachable(pod))
    assert told.environment["AFFINITYD_CPULIST"] == "16-17,150-151"
    assert told.environment["AFFINITYD_ALLOWED"] == "10-17,150-152"


def test_without_a_near_cpu_in_the_table_the_command_stays_where_it_is(pod: Pod) -> None:
    told = pod.run(cpus=frozenset({0, 1, 2}), **unreachable(pod))
    assert told.cpus is None
    trouble = "no affinityd is here to be asked"
    reason = f"{trouble}, and in {pod.to}/table none of the CPUs 0-2 is near the GPU"
    assert told.lines == [f"affinityd run: {reason}; the command runs unpinned"]


@pytest.mark.parametrize(
    ("lines", "cpus", "locality"),
    [
        pytest.param("2 local 0-3 minor:5", "0-3", "local", id="local"),
        pytest.param("2 remote 0-3 minor:5", "0-3", "remote", id="remote"),
        pytest.param("2 unknown 0-3 minor:5", "0-3", "unknown", id="unknown"),
        pytest.param("1 unknown 4 minor:6\n2 local 0-3 minor:5", "0-4", "unknown", id="the worst"),
        pytest.param("1 remote 4 minor:6\n2 unknown 0 minor:5", "0,4", "remote", id="of any"),
    ],
)
def test_the_table_says_how_near_its_cpus_are(
    pod: Pod, lines: str, cpus: str, locality: str
) -> None:
    pod.has("nvidia5", "nvidia6")
    (pod.to / "table").write_text(f"{lines}\n")
    told = pod.run(cpus=ONLINE, **unreachable(pod))
    assert told.cpus == parse_list(cpus)
    assert told.environment["AFFINITYD_LOCALITY"] == locality
    assert len(told.lines) == 1 + (locality == "remote")


@pytest.mark.parametrize(
    ("reach", "cpus"), [("asked", "112-127,240-255"), ("table", "112-119,240-247")]
)
def test_a_rank_beyond_the_gpus_shares_one(pod: Pod, reach: str, cpus: str) -> None:
    pod.has("nvidia5", "nvidia3", "nvidia1")  # GPUs 2, 4 and 6
    away = unreachable(pod) if reach == "table" else {}
    told = pod.run(cpus=ONLINE, AFFINITYD_MODE="node", LOCAL_RANK="4", **away)
    assert told.environment["AFFINITYD_CPULIST"] == cpus


def test_strict_holds_for_the_table_too(pod: Pod) -> None:
    (pod.to / "table").write_text("2 remote 0-3 minor:5\n")
    told = pod.run(cpus=ONLINE, AFFINITYD_STRICT="true", **unreachable(pod))
    assert told.cpus is None
    assert "CPUs 0-3 are far, which AFFINITYD_STRICT forbids" in told.lines[0]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda to: (to / "table").unlink(), id="gone"),
        pytest.param(lambda to: (to / "table").write_text(""), id="empty"),
        pytest.param(lambda to: (to / "table").write_text("2 local 0-x minor:5\n"), id="wrong"),
        pytest.param(lambda to: (to / "table").write_bytes(b"\x00\xff\n" * 9), id="noise"),
        pytest.param(lambda to: (to / "table.sh").unlink(), id="without its reader"),
        pytest.param(lambda to: (to / "settings").unlink(), id="without settings"),
    ],
)
def test_a_folder_that_is_spoilt_is_no_end_of_a_job(pod: Pod, spoil: object) -> None:
    assert callable(spoil)
    spoil(pod.to)
    told = pod.run(cpus=ONLINE, **unreachable(pod))
    assert told.status == 0
    assert "PATH" in told.environment
    if told.cpus is None:
        assert told.lines[-1].endswith("; the command runs unpinned")


def test_a_settings_file_that_breaks_the_shell_is_told(pod: Pod) -> None:
    (pod.to / "settings").write_text("if\n")
    told = pod.run(cpus=ONLINE, shell=["dash"])
    assert told.lines == ["affinityd run: the script broke off; the command runs unpinned"]
