from __future__ import annotations

import pytest

from affinityd.audit.membership import membership
from tests.support.tables import rows

UID = "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01"
IN_A_SLICE = UID.replace("-", "_")
STATIC = "8c5b1f9f2a3f4f0f8e6a3c7d9e1b2a44"
ID = "3f1a" * 16
OTHER = "9b7c" * 16

STEPS = "/system.slice/slurmstepd.scope"
MY = "/user.slice/user-1000.slice/user@1000.service"
PODS = "/kubepods.slice/kubepods-burstable.slice"
POD = f"{PODS}/kubepods-burstable-pod{IN_A_SLICE}.slice"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
BEST = "/kubepods.slice/kubepods-besteffort.slice"
OF_7 = ["slurm 7", "0", None, None]
IN_POD = [f"kubernetes {UID}", None, ID, None]
LOOSE = f"/system.slice/containerd.service/kubepods-burstable-pod{IN_A_SLICE}.slice"


def member(cgroups: str) -> list[str | None]:
    """Return the job, step and container of a process, and what Slurm is in."""
    it = membership(cgroups)
    job = f"{it.job.scheduler} {it.job.id}" if it.job else None
    return [job, it.step, it.container, it.outside]


@pytest.mark.parametrize(
    ("path", "job", "step", "container", "outside"),
    rows(f"""
    a task, v1 | /slurm/uid_1000/job_7/step_0/task_0 | 7 | 0 |  |
    named node, v1 | /slurm_gpu07/uid_0/job_7/step_batch | 7 | batch |  |

    a job that is no user's, v1 | /slurm/job_7/step_0 |  |  |  |
    a task, v2 | {STEPS}/job_7/step_0/user/task_0 | 7 | 0 |  |
    extern | {STEPS}/job_7/step_extern/user/task_0 | 7 | extern |  |

    named node, v2 | /system.slice/gpu07_slurmstepd.scope/job_7/step_0/user | 7 | 0 |  |
    CgroupSlice | /site.slice/site-slurm.slice/slurmstepd.scope/job_7/step_0 | 7 | 0 |  |
    a slurmd in Docker | /docker/{OTHER}{STEPS}/job_7/step_0 | 7 | 0 |  | {OTHER}
    slurmd in a pod | {POD}/cri-containerd-{OTHER}.scope{STEPS}/job_7/step_0 | 7 | 0 |  | {OTHER}
    a job by its SLUID | {STEPS}/sEKNKTV3WPV500/step_0/user/task_0 |  | 0 |  |
    a container in a job | {STEPS}/job_7/step_0/user/task_0/libpod-{ID}.scope | 7 | 0 | {ID} |
    seen from a cgroup namespace | /../../../..{STEPS}/job_7/step_0/user/task_0 | 7 | 0 |  |
    a step whose cgroup is gone | {STEPS}/job_7/step_0 (deleted) | 7 | 0 |  |
    """),
)
def test_slurms_folders_tell_job_and_step(
    path: str, job: str, step: str, container: str, outside: str
) -> None:
    expected = (job and f"slurm {job}", step, container, outside)
    assert member(f"0::{path}\n") == [it or None for it in expected]


@pytest.mark.parametrize(
    ("path", "uid", "container"),
    rows(f"""
    guaranteed, cgroupfs | /kubepods/pod{UID}/{ID} | {UID} | {ID}
    CRI-O, cgroupfs | /kubepods/burstable/pod{UID}/crio-{ID} | {UID} | {ID}
    kind, seen from its host | /docker/{OTHER}/kubelet/kubepods/pod{UID}/{ID} | {UID} | {ID}
    guaranteed | /kubepods.slice/kubepods-pod{IN_A_SLICE}.slice/docker-{ID}.scope | {UID} | {ID}
    burstable, systemd | {POD}/cri-containerd-{ID}.scope | {UID} | {ID}
    besteffort | {BEST}/kubepods-besteffort-pod{IN_A_SLICE}.slice/docker-{ID}.scope | {UID} | {ID}
    CRI-O, systemd | {POD}/crio-{ID}.scope/container | {UID} | {ID}
    what watches a container of CRI-O's | {POD}/crio-conmon-{ID}.scope | {UID} |
    kind | {KIND}/kubelet-kubepods-burstable-pod{IN_A_SLICE}.slice/docker-{ID}.scope | {UID} | {ID}
    containerd that does not speak to systemd | {LOOSE}:cri-containerd:{ID} | {UID} | {ID}
    a static pod | /kubepods/besteffort/pod{STATIC}/{ID} | {STATIC} | {ID}
    Docker in a pod | {POD}/cri-containerd-{ID}.scope/docker/{OTHER} | {UID} | {ID}
    a user of a systemd in a pod | {POD}/cri-containerd-{ID}.scope{MY}/work | {UID} | {ID}
    beside it | /../../kubepods-burstable-pod{IN_A_SLICE}.slice/crio-{ID}.scope | {UID} | {ID}
    beside the reader, cgroupfs | /../../pod{UID}/{ID} | {UID} | {ID}
    a pod without a container | {POD} | {UID} |
    another container of the reader's pod | /../cri-containerd-{ID}.scope |  | {ID}
    Docker, systemd | /system.slice/docker-{ID}.scope |  | {ID}
    Podman, systemd | /machine.slice/libpod-{ID}.scope/container |  | {ID}
    Podman of a user | {MY}/user.slice/libpod-{ID}.scope/container |  | {ID}
    """),
)
def test_the_kubelets_folders_tell_pod_and_container(path: str, uid: str, container: str) -> None:
    job = f"kubernetes {uid}" if uid else None
    assert member(f"0::{path}\n") == [job, None, container or None, None]


@pytest.mark.parametrize(
    "path",
    rows(f"""
    nowhere | /
    what is no pod's uid | /kubepods/burstable/pod-7
    a job by its own word | {MY}/job_999/step_0
    folders like Slurm's, v1 | {MY}/slurm/uid_1000/job_999/step_0
    folders like Slurm's, v2 | {MY}/slurmstepd.scope/job_999/step_0
    folders like the kubelet's | {MY}{POD}
    folders like the kubelet's, cgroupfs | /user.slice/kubepods/pod{UID}
    a job outside of Slurm's folders | /job_999/step_0
    a pod outside of the kubelet's folders | /pod{UID}
    a number that no job has | {STEPS}/job_{"9" * 11}/step_0
    a number that is none | {STEPS}/job_²/step_0
    what watches a container | /machine.slice/libpod-conmon-{ID}.scope
    """),
)
def test_what_a_user_calls_a_cgroup_makes_no_job(path: str) -> None:
    assert member(f"0::{path}\n") == [None] * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [None] * 4),
        ("garbage\n0::\n", [None] * 4),
        ("11:memory:/user.slice\n9:cpuset:/slurm/uid_1/job_7/step_0\n", OF_7),
        (f"9:cpuset:/docker/{ID}\n8:freezer:/slurm/uid_1/job_7/step_0\n", OF_7),
        (f"5:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/init.scope\n", IN_POD),
        (f"5:devices:/\n0::/system.slice/docker-{ID}.scope\n", [None, None, ID, None]),
    ],
)
def test_the_job_may_be_in_any_line(text: str, expected: list[str | None]) -> None:
    assert member(text) == expected
