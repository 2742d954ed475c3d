"""A process's cpuset, of either version of cgroups, however it is mounted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.linux.cgroup import MOST_LEVELS, Cgroups, cpuset_of
from tests.support.children import sleeping
from tests.support.cpusets import cpuset, needs_cpuset

PID = 4711
V1 = "34 31 0:31 {root} {point} rw shared:9 - cgroup cgroup rw,cpuset\n"
V2 = "31 23 0:28 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
AT = "/sys/fs/cgroup"


def written(root: Path, cgroup: str, mounts: str, files: Mapping[str, str]) -> Path:
    """Write a machine's files: the process's cgroup, the mounts, and the cgroups' own."""
    texts = {f"proc/{PID}/cgroup": cgroup, "proc/self/mountinfo": mounts, **files}
    for path, text in texts.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            "0::/job/step\n",
            V2.format(root="/", point=AT),
            {f"{AT}/job/step/cpuset.cpus.effective": "4-7\n", f"{AT}/cpuset.cpus.effective": "0-7"},
            "4-7",
            id="v2: its own cgroup's effective CPUs",
        ),
        pytest.param(
            "0::/job/step/task\n",
            V2.format(root="/", point=AT),
            {f"{AT}/job/cpuset.cpus.effective": "4-7\n", f"{AT}/cpuset.cpus.effective": "0-7\n"},
            "4-7",
            id="v2: where its own cgroup has no cpuset, the nearest above it",
        ),
        pytest.param(
            "0::/\n",
            V2.format(root="/", point=AT),
            {f"{AT}/cpuset.cpus.effective": "0-7\n"},
            "0-7",
            id="v2: the root, as a container sees itself",
        ),
        pytest.param(
            "0::/job\n",
            V2.format(root="/", point=AT),
            {f"{AT}/job/cpuset.cpus": "\n", f"{AT}/cpuset.cpus.effective": "0-3\n"},
            "0-3",
            id="v2: the list that was asked for is not the one that counts",
        ),
        pytest.param(
            "0::/user" + "/d" * MOST_LEVELS + "\n",
            V2.format(root="/", point=AT),
            {
                f"{AT}/user{'/d' * (MOST_LEVELS - 1)}/cpuset.cpus.effective": "2-3\n",
                f"{AT}/user{'/d' * MOST_LEVELS}/cpuset.cpus.effective": "2\n",
            },
            "2-3",
            id="v2: what lies very deep is known by what is above it",
        ),
        pytest.param(
            "4:memory:/m\n3:cpu,cpuset:/job\n0::/other\n",
            V1.format(root="/", point=f"{AT}/cpuset"),
            {
                f"{AT}/cpuset/job/cpuset.effective_cpus": "2\n",
                f"{AT}/cpuset/job/cpuset.cpus": "2-3",
            },
            "2",
            id="v1: what is left of the list by those above",
        ),
        pytest.param(
            "3:cpuset:/job\n",
            V1.format(root="/", point=f"{AT}/cpuset"),
            {f"{AT}/cpuset/job/cpuset.cpus": "2-3\n"},
            "2-3",
            id="v1: an old kernel's file",
        ),
        pytest.param(
            "3:cpuset:/job/step\n",
            V1.format(root="/", point=f"{AT}/cpuset"),
            {f"{AT}/cpuset/job/step/cpuset.cpus": "\n", f"{AT}/cpuset/job/cpuset.cpus": "2-3\n"},
            "2-3",
            id="v1: an empty list leaves the choice to the cgroup above",
        ),
        pytest.param(
            "3:cpuset:/docker/abc/job\n",
            V1.format(root="/docker/abc", point="/cg"),
            {"/cg/job/cpuset.cpus": "5\n", "/cg/docker/abc/job/cpuset.cpus": "6\n"},
            "5",
            id="a mount that shows a part of the hierarchy",
        ),
        pytest.param(
            "3:cpuset:/docker/abcd\n",
            V1.format(root="/docker/abc", point="/cg"),
            {"/cg/cpuset.cpus": "5\n"},
            None,
            id="a mount that shows another part of it, whose name begins alike",
        ),
        pytest.param(
            "0::/job\n",
            V2.format(root="/", point=r"/my\040cgroups"),
            {"/my cgroups/job/cpuset.cpus.effective": "1\n"},
            "1",
            id="a mount point with a blank",
        ),
        pytest.param(
            "3:cpuset:/job\n0::/job\n",
            V1.format(root="/", point="/one") + V2.format(root="/", point="/two"),
            {"/one/job/cpuset.cpus": "1\n", "/two/job/cpuset.cpus.effective": "2\n"},
            "1",
            id="both versions: v1 has the controller",
        ),
        pytest.param(
            "4:memory:/job\n0::/job\n",
            V2.format(root="/", point=AT),
            {f"{AT}/job/cpuset.cpus.effective": "2\n"},
            "2",
            id="both versions: v1 has other controllers only",
        ),
        pytest.param(
            "0::/../../other\n",
            V2.format(root="/", point=AT),
            {f"{AT}/cpuset.cpus.effective": "0-7\n"},
            None,
            id="a cgroup outside of our namespace is not the root's",
        ),
        pytest.param(
            "0::/../../pod7/job\n",
            V2.format(root="/", point=AT) + V2.format(root="/../../..", point="/host"),
            {
                f"{AT}/cpuset.cpus.effective": "0-7\n",
                "/host/pods/pod6/job/cpuset.cpus.effective": "4\n",
                "/host/pods/pod7/job/cpuset.cpus.effective": "5\n",
            },
            "5",
            id="unless the whole hierarchy is mounted, whose folders above ours it does not name",
        ),
        pytest.param(
            "3:cpuset:/../../../slurm/job_7/step_0\n",
            V1.format(root="/../../..", point="/host"),
            {"/host/slurm/job_7/cpuset.cpus": "5\n", "/host/slurm/job_7/step_0/cpuset.cpus": "\n"},
            "5",
            id="or is reached by its name, and leaves the choice to the cgroup above",
        ),
        pytest.param(
            "0::/../job\n",
            V2.format(root="/../..", point="/host"),
            {
                "/host/a/job/cpuset.cpus.effective": "4\n",
                "/host/b/job/cpuset.cpus.effective": "5\n",
            },
            None,
            id="several may be meant",
        ),
        pytest.param(
            "0::/../../../job\n",
            V2.format(root="/../..", point="/host"),
            {"/host/job/cpuset.cpus.effective": "4\n"},
            None,
            id="it is above what the mount shows",
        ),
        pytest.param(
            "0::/\n",
            V2.format(root="/../..", point=AT),
            {f"{AT}/cpuset.cpus.effective": "0-7\n"},
            None,
            id="nor is ours the one that a mount from outside of it shows",
        ),
        pytest.param("0::/job\n", "", {}, None, id="nothing is mounted"),
        pytest.param(
            "0::/job\n", V2.format(root="/", point=AT), {}, None, id="no cgroup has a cpuset"
        ),
        pytest.param(
            "0::/job\n",
            V2.format(root="/", point=AT),
            {f"{AT}/job/cpuset.cpus.effective": "many\n"},
            None,
            id="a file that cannot be read as a list",
        ),
        pytest.param(
            "",
            V2.format(root="/", point=AT),
            {f"{AT}/cpuset.cpus.effective": "0-7\n"},
            None,
            id="a process that is in no hierarchy",
        ),
    ],
)
def test_cpuset_of(
    tmp_path: Path, cgroup: str, mounts: str, files: Mapping[str, str], expected: str | None
) -> None:
    root = written(tmp_path, cgroup, mounts, files)
    assert cpuset_of(PID, str(root)) == (None if expected is None else parse_list(expected))


def test_a_process_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert cpuset_of(10**9) is None
    assert cpuset_of(PID, str(tmp_path)) is None


@needs_cpuset
def test_the_kernels_own_cpuset_is_read_and_followed() -> None:
    online = os.sched_getaffinity(0)
    with cpuset() as folder, sleeping() as child:
        before = cpuset_of(child.pid)
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text(str(min(online)))
        after = cpuset_of(child.pid)
    assert before is not None
    assert before >= online
    assert after == frozenset({min(online)})


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            "0::/job_7/step_0\n",
            V2.format(root="/", point=AT),
            {
                f"{AT}/job_7/cpuset.cpus": "0-7\n",
                f"{AT}/job_7/step_0/cpuset.cpus": "\n",
                f"{AT}/job_7/step_0/cpuset.cpus.effective": "0-7\n",
            },
            f"{AT}/job_7",
            id="v2: the lowest for which CPUs were chosen, be it all of them",
        ),
        pytest.param(
            "0::/slice/job_7\n",
            V2.format(root="/", point=AT),
            {f"{AT}/slice/cpuset.cpus": "0-3\n", f"{AT}/slice/job_7/cpuset.cpus": "\n"},
            f"{AT}/slice",
            id="v2: a slice above the job",
        ),
        pytest.param(
            "0::/job_7\n",
            V2.format(root="/", point=AT),
            {f"{AT}/job_7/cpuset.cpus.effective": "0-7\n"},
            None,
            id="v2: nobody has chosen",
        ),
        pytest.param(
            "5:freezer:/slurm/uid_0/job_7\n3:cpuset:/\n",
            V1.format(root="/", point=f"{AT}/cpuset"),
            {f"{AT}/cpuset/cpuset.cpus": "0-7\n"},
            f"{AT}/cpuset",
            id="v1: the job has cgroups of other controllers alone",
        ),
        pytest.param("", "", {}, None, id="a process that is gone"),
    ],
)
def test_whose_choice_of_cpus_a_process_has(
    tmp_path: Path, cgroup: str, mounts: str, files: Mapping[str, str], expected: str | None
) -> None:
    root = written(tmp_path, cgroup, mounts, files)
    folder = None if expected is None else os.fspath(root) + expected
    assert Cgroups.of(PID, os.fspath(root)).confining == folder
