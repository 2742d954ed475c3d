"""A process's cpuset and CPU limit, of either version of cgroups, however it is mounted."""

import os
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.linux.cgroup import MOST_LEVELS, Cgroups, cpuset_of, own_cpu_limit
from tests.support.machines.sysfs_tree import files_of, put
from tests.support.tables import rows

PID = 4711
DEEP = "user" + "/d" * (MOST_LEVELS - 1)
#: In paths of the tables: the CPUs that a cgroup of v2 has, and those that were chosen for one.
NAMES = {"EFF": "cpuset.cpus.effective", "CPUS": "cpuset.cpus", "DEEP": DEEP}

#: The mounts of the tables: file system, what is shown of it, where, its controller.
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


def spelled(text: str) -> str:
    for name, path in NAMES.items():
        text = text.replace(name, path)
    return text


def written(root: Path, cgroups: str, mounts: str, files: str) -> str:
    """Write a machine: the process's cgroups, the mounts, and files below /cg."""
    lines = []
    for mount in filter(None, MOUNTS[mounts].split("; ")):
        system, shown, point, *controllers = mount.split()
        options = ",".join(("rw", *controllers))
        lines.append(f"34 31 0:31 {shown} {point} rw shared:9 - {system} {system} {options}")
    put(root / "proc/self/mountinfo", "\n".join(lines))
    put(root / f"proc/{PID}/cgroup", spelled(cgroups).replace(" ", "\n"))
    for path, text in files_of("cg", spelled(files)).items():
        put(root / path, text)
    return os.fspath(root)


CPUSETS = """
    v2: its own cgroup's | 0::/job/step | v2 | job/step/EFF=4-7; EFF=0-7 | 4-7
    v2: the nearest above it that has one | 0::/job/step/task | v2 | job/EFF=4-7; EFF=0-7 | 4-7
    v2: the root, as of a container | 0::/ | v2 | EFF=0-7 | 0-7
    v2: what was asked for does not count | 0::/job | v2 | job/CPUS=; EFF=0-3 | 0-3
    v2: very deep, that above it | 0::/DEEP/d | v2 | DEEP/EFF=2-3; DEEP/d/EFF=2 | 2-3
    v1: what is left of it | 3:cpu,cpuset:/j | v1 | j/cpuset.effective_cpus=2; j/CPUS=2-3 | 2
    v1: an old kernel's file | 4:memory:/m 3:cpuset:/job 0::/other | v1 | job/CPUS=2-3 | 2-3
    v1: an empty list, that above it | 3:cpuset:/j/step | v1 | j/step/CPUS=; j/CPUS=2-3 | 2-3
    a part | 3:cpuset:/docker/abc/job | a part | job/CPUS=5; docker/abc/job/CPUS=6 | 5
    another part, whose name begins alike | 3:cpuset:/docker/abcd | a part | CPUS=5 |
    a mount point with a blank | 0::/job | with a blank | my cgroups/job/EFF=1 | 1
    v1: its controller's mount | 3:cpuset:/j | v1, one by one | cpu/j/CPUS=7; set/j/CPUS=1 | 1
    both: v1 has the controller | 3:cpuset:/j 0::/j | both | one/j/CPUS=1; two/j/EFF=2 | 1
    both: v1 has others only | 4:memory:/job 0::/job | v2 | job/EFF=2 | 2
    outside of our namespace | 0::/../../other | v2 | EFF=0-7 |
    but all is mounted | 0::/../../p7/j | ours and all | host/a/p6/j/EFF=4; host/a/p7/j/EFF=5 | 5
    reached by its name | 3:cpuset:/../../../s/j/0 | all of v1 | s/j/CPUS=5; s/j/0/CPUS= | 5
    several may be meant | 0::/../job | from outside | a/job/EFF=4; b/job/EFF=5 |
    above what the mount shows | 0::/../../../job | from outside | job/EFF=4 |
    what is shown from outside is not ours | 0::/ | from outside | EFF=0-7 |
    nothing is mounted | 0::/job | none | |
    no cgroup has a cpuset | 0::/job | v2 | |
    no list | 0::/job | v2 | job/EFF=many |
    it is in no hierarchy | | v2 | EFF=0-7 |
"""


@pytest.mark.parametrize(("cgroups", "mounts", "files", "expected"), rows(CPUSETS))
def test_cpuset_of(tmp_path: Path, cgroups: str, mounts: str, files: str, expected: str) -> None:
    root = written(tmp_path, cgroups, mounts, files)
    assert cpuset_of(PID, root) == (parse_list(expected) if expected else None)
    assert cpuset_of(PID + 1, root) is None  # it is not there


@pytest.mark.parametrize(
    ("cgroups", "mounts", "files", "expected"),
    rows("""
    v2: the lowest for which CPUs were chosen | 0::/j/s | v2 | j/CPUS=0-7; j/s/CPUS=; j/s/EFF=7 | /j
    v2: a slice above the job | 0::/slice/job | v2 | slice/CPUS=0-3; slice/job/CPUS= | /slice
    v2: none were chosen | 0::/job | v2 | job/EFF=0-7 |
    v1: the root's; the job has other cgroups | 5:freezer:/job 3:cpuset:/ | v1 | CPUS=0-7 | /
    """),
)
def test_the_cgroup_that_confines_a_process(
    tmp_path: Path, cgroups: str, mounts: str, files: str, expected: str
) -> None:
    root = written(tmp_path, cgroups, mounts, files)
    its = f"{root}/cg{expected}".rstrip("/") if expected else None
    assert Cgroups.of(PID, root).confining == its


# The CPU limit.


@pytest.mark.parametrize(
    ("cgroups", "mounts", "files", "expected"),
    rows("""
    its own | 0::/pod/a | v2 | pod/a/cpu.max=400000 100000; pod/cpu.max=max 100000 | 4
    the pod's, rounded up | 0::/pod/a | v2 | pod/a/cpu.max=max 100000; pod/cpu.max=250000 100000 | 3
    less than the pod's | 0::/pod/a | v2 | pod/a/cpu.max=200 100; pod/cpu.max=400 100 | 2
    more than the pod's | 0::/pod/a | v2 | pod/a/cpu.max=400 100; pod/cpu.max=200 100 | 2
    none | 0::/pod | v2 | pod/cpu.max=max 100000 |
    no period | 0::/pod | v2 | pod/cpu.max=7 0 |
    v1 | 4:cpu,cpuacct:/p | v1's CPU | p/cpu.cfs_quota_us=150000; p/cpu.cfs_period_us=50000 | 3
    v1: none | 4:cpu,cpuacct:/p | v1's CPU | p/cpu.cfs_quota_us=-1; p/cpu.cfs_period_us=100000 |
    v1: no period | 4:cpu,cpuacct:/p | v1's CPU | p/cpu.cfs_quota_us=5 |
    exclusive CPUs | 0::/a | v2 | a/EFF=0-7; a/cpu.weight=313; a/cpu.max=max 100000 | 8
    … by a newer runc | 0::/pod/a | v2 | pod/a/EFF=0-7; pod/a/cpu.weight=532 | 8
    … the default weight asks for none | 0::/a | v2 | a/EFF=0-1; a/cpu.weight=100 |
    … the weight of fewer | 0::/pod/a | v2 | pod/a/EFF=0-7; pod/a/cpu.weight=312 |
    … with the most weight | 0::/pod/a | v2 | pod/a/EFF=0-299; pod/a/cpu.weight=10000 | 300
    … the pod's weight is no container's | 0::/pod/a | v2 | pod/EFF=0-7; pod/cpu.weight=313 |
    a process that is gone | | none | |
    """),
)
def test_the_least_cpu_limit_of_a_cgroup_and_its_parents_counts(
    tmp_path: Path, cgroups: str, mounts: str, files: str, expected: str
) -> None:
    limit = Cgroups.of(PID, written(tmp_path, cgroups, mounts, files)).cpu_limit()
    assert limit == (int(expected) if expected else None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("cpu.max=250000 100000", 3),
        (f"cpu.max={'9' * 5000} 1", None),
        ("cpu/cpu.cfs_quota_us=4; cpu/cpu.cfs_period_us=2", 2),
        ("cpu.max=max 100000; cpu.weight=157", 4),  # exclusive CPUs
        ("cpu.max=max 100000; cpu.weight=156", None),
        ("cpu/cpu.cfs_quota_us=-1; cpu/cpu.cfs_period_us=2; cpu/cpu.shares=4096", 4),
        ("cpu/cpu.cfs_quota_us=-1; cpu/cpu.cfs_period_us=2; cpu/cpu.shares=4095", None),
        ("cpu/cpu.shares=4096; cpu/release_agent=", None),  # the root of a node
        ("", None),
    ],
)
def test_a_container_reads_its_own_cpu_limit(
    tmp_path: Path, files: str, expected: int | None
) -> None:
    assert own_cpu_limit(4, f"{written(tmp_path, '', 'none', files)}/cg") == expected
