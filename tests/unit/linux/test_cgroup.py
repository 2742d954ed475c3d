"""A process's cpuset and CPU limit, of either version of cgroups, with any mounts."""

import os
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.linux.cgroup import MOST_LEVELS, Cgroups, cpuset_of
from tests.support.machines.sysfs_tree import files_of, put
from tests.support.tables import cases, rows

PID = 4711
DEEP = "user" + "/d" * (MOST_LEVELS - 1)
EFF, CPUS = "cpuset.cpus.effective", "cpuset.cpus"  #: the CPUs in effect, and those set
NAMES = {"EFF": EFF, "CPUS": CPUS, "DEEP": DEEP}

#: The mounts of the tables: `FILE_SYSTEM FOLDER_SHOWN MOUNT_POINT [CONTROLLERS]`.
MOUNTS = {
    "v1": "cgroup / /cg cpuset",
    "v2": "cgroup2 / /cg",
    "both": "cgroup / /cg/one cpuset; cgroup2 / /cg/two",
    "a part": "cgroup /docker/abc /cg cpuset",
    "with a blank": r"cgroup2 / /cg/my\040cgroups",
    "ours and all": "cgroup2 / /cg; cgroup2 /../../.. /cg/host",
    "all of v1": "cgroup /../../.. /cg cpuset",
    "from outside": "cgroup2 /../.. /cg",
    "v1's CPU": "cgroup / /cg cpu,cpuacct",
    "v1, one by one": "cgroup / /cg/cpu cpu,cpuacct; cgroup / /cg/set cpuset",
    "none": "",
}


def written(root: Path, cgroups: str, mounts: str, files: str) -> str:
    """Write a machine: the process's cgroups, the mounts, and files below /cg."""
    lines = []
    for mount in filter(None, MOUNTS[mounts].split("; ")):
        system, shown, point, *controllers = mount.split()
        options = ",".join(("rw", *controllers))
        lines.append(f"34 31 0:31 {shown} {point} rw shared:9 - {system} {system} {options}")
    put(root / "proc/self/mountinfo", "\n".join(lines))
    put(root / f"proc/{PID}/cgroup", cgroups.replace(" ", "\n"))
    for path, text in files_of("cg", files).items():
        put(root / path, text)
    return os.fspath(root)


@pytest.mark.parametrize(
    ("cgroups", "mounts", "files", "expected"), cases("cgroup_cpusets.tsv", **NAMES)
)
def test_the_cpuset_of_a_process_is_found(
    tmp_path: Path, cgroups: str, mounts: str, files: str, expected: str
) -> None:
    root = written(tmp_path, cgroups, mounts, files)
    assert cpuset_of(PID, root) == (parse_list(expected) if expected else None)
    assert cpuset_of(PID + 1, root) is None  # there is no such process


@pytest.mark.parametrize(
    ("cgroups", "mounts", "files", "expected"),
    rows(f"""
    v2: the lowest with chosen CPUs | 0::/j/s | v2 | j/{CPUS}=0-7; j/s/{CPUS}=; j/s/{EFF}=7 | /j
    v2: a slice above the job | 0::/slice/job | v2 | slice/{CPUS}=0-3; slice/job/{CPUS}= | /slice
    v2: no CPUs were chosen | 0::/job | v2 | job/{EFF}=0-7 |
    v1: the root; the job has other cgroups | 5:freezer:/job 3:cpuset:/ | v1 | {CPUS}=0-7 | /
    """),
)
def test_the_cgroup_that_confines_a_process_is_found(
    tmp_path: Path, cgroups: str, mounts: str, files: str, expected: str
) -> None:
    root = written(tmp_path, cgroups, mounts, files)
    its = f"{root}/cg{expected}".rstrip("/") if expected else None
    assert Cgroups.of(PID, root).confining == its


# The CPU limit.


@pytest.mark.parametrize(
    ("cgroups", "mounts", "files", "expected"), cases("cgroup_limits.tsv", **NAMES)
)
def test_the_lowest_cpu_limit_of_a_cgroup_and_its_parents_applies(
    tmp_path: Path, cgroups: str, mounts: str, files: str, expected: str
) -> None:
    of_process = Cgroups.of(PID, written(tmp_path, cgroups, mounts, files))
    limit = int(expected) if expected else None
    assert of_process.cpu_limit() == limit
    # The limit of a service or a login on the node is no container's limit.
    assert of_process.container_limit() == (limit if cgroups.endswith(":/") else None)
