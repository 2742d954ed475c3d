"""The CPU limit of a process's cgroup, of either version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.linux.cgroup import Cgroups
from affinityd.linux.cpu_limit import cpu_limit_of, own_cpu_limit
from tests.unit.linux.test_cgroup import AT, PID, V2, written

V1 = f"34 31 0:31 / {AT}/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
ON_V1 = f"{AT}/cpu/pod/cpu.cfs_"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            "0::/pod/a\n",
            V2.format(root="/", point=AT),
            {f"{AT}/pod/a/cpu.max": "400000 100000\n", f"{AT}/pod/cpu.max": "max 100000\n"},
            4,
            id="v2",
        ),
        pytest.param(
            "0::/pod/a\n",
            V2.format(root="/", point=AT),
            {f"{AT}/pod/a/cpu.max": "max 100000\n", f"{AT}/pod/cpu.max": "250000 100000\n"},
            3,
            id="v2: the pod's, rounded up",
        ),
        pytest.param(
            "0::/pod\n",
            V2.format(root="/", point=AT),
            {f"{AT}/pod/cpu.max": "max 100000\n"},
            None,
            id="v2: none",
        ),
        pytest.param(
            "4:cpu,cpuacct:/pod\n",
            V1,
            {f"{ON_V1}quota_us": "150000\n", f"{ON_V1}period_us": "50000\n"},
            3,
            id="v1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/pod\n",
            V1,
            {f"{ON_V1}quota_us": "-1\n", f"{ON_V1}period_us": "100000\n"},
            None,
            id="v1: none",
        ),
        pytest.param(
            "4:cpu,cpuacct:/pod\n", V1, {f"{ON_V1}quota_us": "5\n"}, None, id="v1: half of it"
        ),
        pytest.param(
            "0::/pod\n",
            V2.format(root="/", point=AT),
            {f"{AT}/pod/cpu.max": "7 0\n"},
            None,
            id="garbage",
        ),
        pytest.param("", "", {}, None, id="no cgroups"),
    ],
)
def test_the_least_limit_of_a_cgroup_and_those_above_it_counts(
    tmp_path: Path, cgroup: str, mounts: str, files: Mapping[str, str], expected: int | None
) -> None:
    root = written(tmp_path, cgroup, mounts, files)
    assert cpu_limit_of(Cgroups.of(PID, str(root))) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"cpu.max": "250000 100000\n"}, 3, id="v2"),
        pytest.param({"cpu.max": "max 100000\n"}, None, id="v2: none"),
        pytest.param({"cpu/cpu.cfs_quota_us": "4\n", "cpu/cpu.cfs_period_us": "2\n"}, 2, id="v1"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "2\n"}, None, id="v1: none"
        ),
        pytest.param({"cpu.max": f"{'9' * 5000} 1\n"}, None, id="a huge number"),
        pytest.param({}, None, id="a node"),
    ],
)
def test_a_container_sees_its_limit_at_the_root_of_its_cgroups(
    tmp_path: Path, files: Mapping[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert own_cpu_limit(f"{tmp_path}") == expected
