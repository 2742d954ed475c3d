from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.membership import membership
from affinityd.audit.model import KUBERNETES, SLURM, Job, Membership

UID = "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01"
IN_A_SLICE = UID.replace("-", "_")
STATIC = "8c5b1f9f2a3f4f0f8e6a3c7d9e1b2a44"
ID = "3f1a" * 16
OTHER = "9b7c" * 16

IN_THE_POD = Membership(Job(KUBERNETES, UID), container=ID)
IN_A_CONTAINER = Membership(container=ID)
NOWHERE = Membership()

PODS = "/kubepods.slice/kubepods-burstable.slice"
POD = f"{PODS}/kubepods-burstable-pod{IN_A_SLICE}.slice"
STEPS = "/system.slice/slurmstepd.scope"
MY = "/user.slice/user-1000.slice/user@1000.service"


def slurm(job: int | None, step: str | None = None, container: str | None = None) -> Membership:
    return Membership(None if job is None else Job(SLURM, str(job)), step, container)


@pytest.mark.parametrize(
    ("path", "member"),
    [
        pytest.param("/slurm/uid_1000/job_7/step_0/task_0", slurm(7, "0"), id="a task, v1"),
        pytest.param("/slurm_gpu07/uid_0/job_7/step_batch", slurm(7, "batch"), id="named node, v1"),
        pytest.param("/slurm/uid_1000/job_7", slurm(7), id="a job, v1"),
        pytest.param("/slurm/uid_1000", NOWHERE, id="a user's folder, v1"),
        pytest.param("/slurm/system", NOWHERE, id="slurmd, v1"),
        pytest.param("/slurm/job_7/step_0", NOWHERE, id="a job that is no user's, v1"),
        pytest.param(f"{STEPS}/job_7/step_0/user/task_0", slurm(7, "0"), id="a task, v2"),
        pytest.param(f"{STEPS}/job_7/step_batch/user/task_special", slurm(7, "batch"), id="batch"),
        pytest.param(f"{STEPS}/job_7/step_extern/user/task_0", slurm(7, "extern"), id="extern"),
        pytest.param(f"{STEPS}/job_7/step_interactive/user", slurm(7, "interactive"), id="salloc"),
        pytest.param(f"{STEPS}/job_7/step_0/slurm", slurm(7, "0"), id="a slurmstepd"),
        pytest.param(f"{STEPS}/system", NOWHERE, id="what keeps the scope alive"),
        pytest.param("/system.slice/slurmd.service", NOWHERE, id="slurmd, v2"),
        pytest.param(
            "/system.slice/gpu07_slurmstepd.scope/job_7/step_0/user/task_0",
            slurm(7, "0"),
            id="named node, v2",
        ),
        pytest.param(
            "/site.slice/site-slurm.slice/slurmstepd.scope/job_7/step_0/user/task_0",
            slurm(7, "0"),
            id="CgroupSlice",
        ),
        pytest.param(
            f"/system.slice/docker-{OTHER}.scope/system.slice/slurmstepd.scope/job_7/step_0",
            replace(slurm(7, "0"), outside=OTHER),
            id="a slurmd in a container",
        ),
        pytest.param(
            f"{POD}/cri-containerd-{OTHER}.scope/system.slice/slurmstepd.scope/job_7/step_0",
            replace(slurm(7, "0"), outside=OTHER),
            id="a slurmd in a pod",
        ),
        pytest.param(
            f"{STEPS}/sEKNKTV3WPV500/step_0/user/task_0", slurm(None, "0"), id="a job by its SLUID"
        ),
        pytest.param(
            f"{STEPS}/job_7/step_0/user/task_0/libpod-{ID}.scope/container",
            slurm(7, "0", ID),
            id="a container in a job",
        ),
        pytest.param(
            f"/../../../..{STEPS}/job_7/step_0/user/task_0",
            slurm(7, "0"),
            id="a task, seen from a cgroup namespace",
        ),
        pytest.param(
            f"{STEPS}/job_7/step_0 (deleted)", slurm(7, "0"), id="a step whose cgroup is gone"
        ),
    ],
)
def test_slurms_folders_tell_job_and_step(path: str, member: Membership) -> None:
    assert membership(f"0::{path}\n") == member


@pytest.mark.parametrize(
    ("path", "member"),
    [
        pytest.param(f"/kubepods/pod{UID}/{ID}", IN_THE_POD, id="guaranteed, cgroupfs"),
        pytest.param(f"/kubepods/burstable/pod{UID}/{ID}", IN_THE_POD, id="burstable, cgroupfs"),
        pytest.param(f"/kubepods/besteffort/pod{UID}/{ID}", IN_THE_POD, id="besteffort, cgroupfs"),
        pytest.param(f"/kubepods/burstable/pod{UID}/crio-{ID}", IN_THE_POD, id="CRI-O, cgroupfs"),
        pytest.param(f"/kubelet/kubepods/pod{UID}/{ID}", IN_THE_POD, id="kind, cgroupfs"),
        pytest.param(
            f"/docker/{OTHER}/kubelet/kubepods/pod{UID}/{ID}",
            IN_THE_POD,
            id="kind, seen from its host",
        ),
        pytest.param(
            f"/kubepods.slice/kubepods-pod{IN_A_SLICE}.slice/cri-containerd-{ID}.scope",
            IN_THE_POD,
            id="guaranteed, systemd",
        ),
        pytest.param(f"{POD}/cri-containerd-{ID}.scope", IN_THE_POD, id="burstable, systemd"),
        pytest.param(
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{IN_A_SLICE}.slice"
            f"/docker-{ID}.scope",
            IN_THE_POD,
            id="besteffort of Docker, systemd",
        ),
        pytest.param(f"{POD}/crio-{ID}.scope/container", IN_THE_POD, id="CRI-O, systemd"),
        pytest.param(
            f"{POD}/crio-conmon-{ID}.scope",
            Membership(Job(KUBERNETES, UID)),
            id="what watches a container of CRI-O's",
        ),
        pytest.param(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            f"/kubelet-kubepods-burstable-pod{IN_A_SLICE}.slice/cri-containerd-{ID}.scope",
            IN_THE_POD,
            id="kind, systemd",
        ),
        pytest.param(
            f"/system.slice/containerd.service/kubepods-burstable-pod{IN_A_SLICE}.slice"
            f":cri-containerd:{ID}",
            IN_THE_POD,
            id="containerd that does not speak to systemd",
        ),
        pytest.param(
            f"/kubepods/besteffort/pod{STATIC}/{ID}",
            Membership(Job(KUBERNETES, STATIC), container=ID),
            id="a static pod",
        ),
        pytest.param(
            f"{POD}/cri-containerd-{ID}.scope/docker/{OTHER}", IN_THE_POD, id="Docker in a pod"
        ),
        pytest.param(
            f"{POD}/cri-containerd-{ID}.scope/system.slice/sshd.service",
            IN_THE_POD,
            id="systemd in a pod",
        ),
        pytest.param(
            f"{POD}/cri-containerd-{ID}.scope{MY}/work",
            IN_THE_POD,
            id="a user of a systemd in a pod",
        ),
        pytest.param(
            f"/../../kubepods-burstable-pod{IN_A_SLICE}.slice/cri-containerd-{ID}.scope",
            IN_THE_POD,
            id="another pod, systemd, seen from a cgroup namespace",
        ),
        pytest.param(
            f"/../../pod{UID}/{ID}",
            IN_THE_POD,
            id="another pod, cgroupfs, seen from a cgroup namespace",
        ),
        pytest.param(
            f"/../cri-containerd-{ID}.scope",
            IN_A_CONTAINER,
            id="another container of the reader's pod, seen from a cgroup namespace",
        ),
        pytest.param(POD, Membership(Job(KUBERNETES, UID)), id="a pod without a container"),
        pytest.param("/kubepods/burstable/pod-7", NOWHERE, id="what is no pod's uid"),
        pytest.param(PODS, NOWHERE, id="what is above the pods"),
    ],
)
def test_the_kubelets_folders_tell_pod_and_container(path: str, member: Membership) -> None:
    assert membership(f"0::{path}\n") == member


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"/docker/{ID}", id="Docker, cgroupfs"),
        pytest.param(f"/system.slice/docker-{ID}.scope", id="Docker, systemd"),
        pytest.param(f"/system.slice/nerdctl-{ID}.scope", id="nerdctl"),
        pytest.param(f"/machine.slice/libpod-{ID}.scope/container", id="Podman, systemd"),
        pytest.param(f"/libpod_parent/libpod-{ID}", id="Podman, cgroupfs"),
        pytest.param(f"{MY}/user.slice/libpod-{ID}.scope/container", id="Podman of a user"),
    ],
)
def test_a_container_that_no_scheduler_started_is_of_no_job(path: str) -> None:
    assert membership(f"0::{path}\n") == IN_A_CONTAINER


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="nowhere"),
        pytest.param(f"{MY}/job_999/step_0", id="a job by its own word"),
        pytest.param(f"{MY}/slurm/uid_1000/job_999/step_0", id="folders like Slurm's, v1"),
        pytest.param(f"{MY}/slurmstepd.scope/job_999/step_0", id="folders like Slurm's, v2"),
        pytest.param(f"{MY}{POD}", id="folders like the kubelet's"),
        pytest.param(f"/user.slice/kubepods/pod{UID}", id="folders like the kubelet's, cgroupfs"),
        pytest.param("/job_999/step_0", id="a job outside of Slurm's folders"),
        pytest.param(f"/pod{UID}", id="a pod outside of the kubelet's folders"),
        pytest.param(f"{STEPS}/job_{'9' * 11}/step_0", id="a number that no job has"),
        pytest.param(f"{STEPS}/job_²/step_0", id="a number that is none"),
        pytest.param(f"/machine.slice/libpod-conmon-{ID}.scope", id="what watches a container"),
    ],
)
def test_what_a_user_calls_a_cgroup_makes_no_job(path: str) -> None:
    assert membership(f"0::{path}\n") == NOWHERE


@pytest.mark.parametrize(
    ("text", "member"),
    [
        pytest.param("", NOWHERE, id="no line, as of a process that is gone"),
        pytest.param("garbage\n0::\n", NOWHERE, id="lines that are none"),
        pytest.param(
            "11:memory:/user.slice\n9:cpuset:/slurm/uid_1000/job_7/step_0\n1:name=systemd:/\n",
            slurm(7, "0"),
            id="Slurm with some of v1's controllers",
        ),
        pytest.param(
            f"9:cpuset:/docker/{ID}\n8:freezer:/slurm/uid_1/job_7/step_0\n0::/\n",
            slurm(7, "0"),
            id="a job in one line and a container in another",
        ),
        pytest.param(
            f"5:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/init.scope\n",
            IN_THE_POD,
            id="a hybrid hierarchy",
        ),
        pytest.param(
            f"5:devices:/\n0::/system.slice/docker-{ID}.scope\n",
            IN_A_CONTAINER,
            id="a container in v2's line",
        ),
    ],
)
def test_the_job_may_be_in_any_line(text: str, member: Membership) -> None:
    assert membership(text) == member
