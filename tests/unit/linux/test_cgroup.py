"""A process's cpuset and CPU limit, of either version of cgroups, however it is mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.linux.cgroup import MOST_LEVELS, Cgroups, cpuset_of
from affinityd.linux.cpu_limit import cpu_limit_of, own_cpu_limit

PID = 4711
AT = "/sys/fs/cgroup"
EFFECTIVE = "cpuset.cpus.effective"


def v1(root: str = "/", point: str = f"{AT}/cpuset", controller: str = "cpuset") -> str:
    return f"34 31 0:31 {root} {point} rw shared:9 - cgroup cgroup rw,{controller}\n"


def v2(root: str = "/", point: str = AT) -> str:
    return f"31 23 0:28 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def written(root: Path, cgroup: str, mounts: str, files: dict[str, str]) -> str:
    """Write a machine's files: the process's cgroup, the mounts, and the cgroups' own.

    These by path, below AT where that is relative.
    """
    texts = {f"/proc/{PID}/cgroup": cgroup, "/proc/self/mountinfo": mounts, **files}
    for path, text in texts.items():
        file = root / (path if path.startswith("/") else f"{AT}/{path}").lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return os.fspath(root)


DEEP = "user" + "/d" * (MOST_LEVELS - 1)
PART = v1("/docker/abc", "/cg")
WHOLE = "/host/pods"  #: the whole hierarchy, mounted from above our cgroup namespace


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            *("0::/job/step\n", v2()),
            {f"job/step/{EFFECTIVE}": "4-7\n", EFFECTIVE: "0-7"},
            "4-7",
            id="v2: its own cgroup's effective CPUs",
        ),
        pytest.param(
            *("0::/job/step/task\n", v2()),
            {f"job/{EFFECTIVE}": "4-7\n", EFFECTIVE: "0-7\n"},
            "4-7",
            id="v2: where its own cgroup has no cpuset, the nearest above it",
        ),
        pytest.param(
            "0::/\n", v2(), {EFFECTIVE: "0-7\n"}, "0-7", id="v2: the root, as of a container"
        ),
        pytest.param(
            *("0::/job\n", v2(), {"job/cpuset.cpus": "\n", EFFECTIVE: "0-3\n"}, "0-3"),
            id="v2: the list that was asked for is not the one that counts",
        ),
        pytest.param(
            *(f"0::/{DEEP}/d\n", v2()),
            {f"{DEEP}/{EFFECTIVE}": "2-3\n", f"{DEEP}/d/{EFFECTIVE}": "2\n"},
            "2-3",
            id="v2: what lies very deep is known by what is above it",
        ),
        pytest.param(
            *("4:memory:/m\n3:cpu,cpuset:/job\n0::/other\n", v1()),
            {"cpuset/job/cpuset.effective_cpus": "2\n", "cpuset/job/cpuset.cpus": "2-3"},
            "2",
            id="v1: what is left of the list by those above",
        ),
        pytest.param(
            *("3:cpuset:/job\n", v1(), {"cpuset/job/cpuset.cpus": "2-3\n"}, "2-3"),
            id="v1: an old kernel's file",
        ),
        pytest.param(
            *("3:cpuset:/job/step\n", v1()),
            {"cpuset/job/step/cpuset.cpus": "\n", "cpuset/job/cpuset.cpus": "2-3\n"},
            "2-3",
            id="v1: an empty list leaves the choice to the cgroup above",
        ),
        pytest.param(
            *("3:cpuset:/docker/abc/job\n", PART),
            {"/cg/job/cpuset.cpus": "5\n", "/cg/docker/abc/job/cpuset.cpus": "6\n"},
            "5",
            id="a mount that shows a part of the hierarchy",
        ),
        pytest.param(
            *("3:cpuset:/docker/abcd\n", PART, {"/cg/cpuset.cpus": "5\n"}, None),
            id="a mount that shows another part of it, whose name begins alike",
        ),
        pytest.param(
            *("0::/job\n", v2(point=r"/my\040cgroups"), {f"/my cgroups/job/{EFFECTIVE}": "1\n"}),
            "1",
            id="a mount point with a blank",
        ),
        pytest.param(
            *("3:cpuset:/job\n0::/job\n", v1(point="/one") + v2(point="/two")),
            {"/one/job/cpuset.cpus": "1\n", f"/two/job/{EFFECTIVE}": "2\n"},
            "1",
            id="both versions: v1 has the controller",
        ),
        pytest.param(
            *("4:memory:/job\n0::/job\n", v2(), {f"job/{EFFECTIVE}": "2\n"}, "2"),
            id="both versions: v1 has other controllers only",
        ),
        pytest.param(
            *("0::/../../other\n", v2(), {EFFECTIVE: "0-7\n"}, None),
            id="a cgroup outside of our namespace is not the root's",
        ),
        pytest.param(
            *("0::/../../pod7/job\n", v2() + v2("/../../..", "/host")),
            {
                EFFECTIVE: "0-7\n",
                f"{WHOLE}/pod6/job/{EFFECTIVE}": "4\n",
                f"{WHOLE}/pod7/job/{EFFECTIVE}": "5\n",
            },
            "5",
            id="unless the whole hierarchy is mounted, whose folders above ours it does not name",
        ),
        pytest.param(
            *("3:cpuset:/../../../slurm/job_7/step_0\n", v1("/../../..", "/host")),
            {"/host/slurm/job_7/cpuset.cpus": "5\n", "/host/slurm/job_7/step_0/cpuset.cpus": "\n"},
            "5",
            id="or is reached by its name, and leaves the choice to the cgroup above",
        ),
        pytest.param(
            *("0::/../job\n", v2("/../..", "/host")),
            {f"/host/a/job/{EFFECTIVE}": "4\n", f"/host/b/job/{EFFECTIVE}": "5\n"},
            None,
            id="several may be meant",
        ),
        pytest.param(
            *("0::/../../../job\n", v2("/../..", "/host"), {f"/host/job/{EFFECTIVE}": "4\n"}, None),
            id="it is above what the mount shows",
        ),
        pytest.param(
            *("0::/\n", v2("/../.."), {EFFECTIVE: "0-7\n"}, None),
            id="nor is ours the one that a mount from outside of it shows",
        ),
        pytest.param("0::/job\n", "", {}, None, id="nothing is mounted"),
        pytest.param("0::/job\n", v2(), {}, None, id="no cgroup has a cpuset"),
        pytest.param("0::/job\n", v2(), {f"job/{EFFECTIVE}": "many\n"}, None, id="no list"),
        pytest.param("", v2(), {EFFECTIVE: "0-7\n"}, None, id="it is in no hierarchy"),
    ],
)
def test_cpuset_of(
    tmp_path: Path, cgroup: str, mounts: str, files: dict[str, str], expected: str | None
) -> None:
    root = written(tmp_path, cgroup, mounts, files)
    assert cpuset_of(PID, root) == (None if expected is None else parse_list(expected))


def test_a_process_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert cpuset_of(10**9) is None
    assert cpuset_of(PID, str(tmp_path)) is None


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            *("0::/job_7/step_0\n", v2()),
            {
                "job_7/cpuset.cpus": "0-7\n",
                "job_7/step_0/cpuset.cpus": "\n",
                f"job_7/step_0/{EFFECTIVE}": "0-7\n",
            },
            f"{AT}/job_7",
            id="v2: the lowest for which CPUs were chosen, be it all of them",
        ),
        pytest.param(
            *("0::/slice/job_7\n", v2()),
            {"slice/cpuset.cpus": "0-3\n", "slice/job_7/cpuset.cpus": "\n"},
            f"{AT}/slice",
            id="v2: a slice above the job",
        ),
        pytest.param(
            *("0::/job_7\n", v2(), {f"job_7/{EFFECTIVE}": "0-7\n"}, None),
            id="v2: none were chosen",
        ),
        pytest.param(
            *("5:freezer:/slurm/uid_0/job_7\n3:cpuset:/\n", v1()),
            *({"cpuset/cpuset.cpus": "0-7\n"}, f"{AT}/cpuset"),
            id="v1: the job has cgroups of other controllers alone",
        ),
        pytest.param("", "", {}, None, id="a process that is gone"),
    ],
)
def test_whose_choice_of_cpus_a_process_has(
    tmp_path: Path, cgroup: str, mounts: str, files: dict[str, str], expected: str | None
) -> None:
    root = written(tmp_path, cgroup, mounts, files)
    assert Cgroups.of(PID, root).confining == (None if expected is None else root + expected)


# The CPU limit.

ON_V1 = "4:cpu,cpuacct:/pod\n", v1(point=f"{AT}/cpu", controller="cpu,cpuacct")
QUOTA, PERIOD = "cpu/pod/cpu.cfs_quota_us", "cpu/pod/cpu.cfs_period_us"
UNLIMITED = "max 100000\n"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        ("0::/pod/a\n", v2(), {"pod/a/cpu.max": "400000 100000\n", "pod/cpu.max": UNLIMITED}, 4),
        # The pod's, rounded up.
        ("0::/pod/a\n", v2(), {"pod/a/cpu.max": UNLIMITED, "pod/cpu.max": "250000 100000\n"}, 3),
        ("0::/pod\n", v2(), {"pod/cpu.max": UNLIMITED}, None),
        ("0::/pod\n", v2(), {"pod/cpu.max": "7 0\n"}, None),
        (*ON_V1, {QUOTA: "150000\n", PERIOD: "50000\n"}, 3),
        (*ON_V1, {QUOTA: "-1\n", PERIOD: "100000\n"}, None),
        (*ON_V1, {QUOTA: "5\n"}, None),
        ("", "", {}, None),
    ],
)
def test_the_least_limit_of_a_cgroup_and_those_above_it_counts(
    tmp_path: Path, cgroup: str, mounts: str, files: dict[str, str], expected: int | None
) -> None:
    assert cpu_limit_of(Cgroups.of(PID, written(tmp_path, cgroup, mounts, files))) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": UNLIMITED}, None),
        ({"cpu.max": f"{'9' * 5000} 1\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "4\n", "cpu/cpu.cfs_period_us": "2\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "2\n"}, None),
        ({}, None),
    ],
)
def test_a_container_sees_its_limit_at_the_root_of_its_cgroups(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    root = written(tmp_path, "", "", files)
    assert own_cpu_limit(f"{root}{AT}") == expected
