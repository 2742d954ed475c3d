from pathlib import Path

import pytest

from affinityd.audit.gather import membership, service
from affinityd.audit.model import SLURM, Job
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
LOOSE = f"/system.slice/containerd.service/kubepods-burstable-pod{IN_A_SLICE}.slice"
IN_POD = f"kubernetes {UID} container {ID}"


def member(cgroups: str) -> str:
    """Return the job, step and container of a process, and what Slurm is in."""
    it = membership(cgroups)
    job = f"{it.job.scheduler} {it.job.id}" if it.job else None
    named = {"step": it.step, "container": it.container, "outside": it.outside}
    return " ".join(filter(None, (job, *(f"{name} {id_}" for name, id_ in named.items() if id_))))


@pytest.mark.parametrize(
    ("path", "expected"),
    rows(f"""
    a task, v1 | /slurm/uid_1000/job_7/step_0/task_0 | slurm 7 step 0
    named node, v1 | /slurm_gpu07/uid_0/job_7/step_batch | slurm 7 step batch
    a task, v2 | {STEPS}/job_7/step_0/user/task_0 | slurm 7 step 0
    extern | {STEPS}/job_7/step_extern/user/task_0 | slurm 7 step extern
    named node, v2 | /system.slice/gpu07_slurmstepd.scope/job_7/step_0/user | slurm 7 step 0
    CgroupSlice | /site.slice/site-slurm.slice/slurmstepd.scope/job_7/step_0 | slurm 7 step 0
    a slurmd in Docker | /docker/{OTHER}{STEPS}/job_7/step_0 | slurm 7 step 0 outside {OTHER}
    in a pod | {POD}/crio-{OTHER}.scope{STEPS}/job_7/step_0 | slurm 7 step 0 outside {OTHER}
    a job by its SLUID | {STEPS}/sEKNKTV3WPV500/step_0/user/task_0 | slurm sEKNKTV3WPV500 step 0
    the node's own pods | /kubepods.slice/kubepods-system.slice/\
kubepods-system-pod{IN_A_SLICE}.slice/cri-containerd-{ID}.scope | {IN_POD}
    the same, cgroupfs | /kubepods/system/pod{UID}/{ID} | {IN_POD}
    a container in a job | {STEPS}/job_7/step_0/libpod-{ID}.scope | slurm 7 step 0 container {ID}
    seen from a cgroup namespace | /../../../..{STEPS}/job_7/step_0/user/task_0 | slurm 7 step 0
    a step whose cgroup is gone | {STEPS}/job_7/step_0 (deleted) | slurm 7 step 0
    guaranteed, cgroupfs | /kubepods/pod{UID}/{ID} | {IN_POD}
    CRI-O, cgroupfs | /kubepods/burstable/pod{UID}/crio-{ID} | {IN_POD}
    kind, seen from its host | /docker/{OTHER}/kubelet/kubepods/pod{UID}/{ID} | {IN_POD}
    guaranteed | /kubepods.slice/kubepods-pod{IN_A_SLICE}.slice/docker-{ID}.scope | {IN_POD}
    burstable, systemd | {POD}/cri-containerd-{ID}.scope | {IN_POD}
    besteffort | {BEST}/kubepods-besteffort-pod{IN_A_SLICE}.slice/docker-{ID}.scope | {IN_POD}
    CRI-O, systemd | {POD}/crio-{ID}.scope/container | {IN_POD}
    what watches a container of CRI-O's | {POD}/crio-conmon-{ID}.scope | kubernetes {UID}
    kind | {KIND}/kubelet-kubepods-burstable-pod{IN_A_SLICE}.slice/docker-{ID}.scope | {IN_POD}
    containerd that does not speak to systemd | {LOOSE}:cri-containerd:{ID} | {IN_POD}
    a static pod | /kubepods/besteffort/pod{STATIC}/{ID} | kubernetes {STATIC} container {ID}
    Docker in a pod | {POD}/cri-containerd-{ID}.scope/docker/{OTHER} | {IN_POD}
    a user of a systemd in a pod | {POD}/cri-containerd-{ID}.scope{MY}/work | {IN_POD}
    beside it | /../../kubepods-burstable-pod{IN_A_SLICE}.slice/crio-{ID}.scope | {IN_POD}
    beside the reader, cgroupfs | /../../pod{UID}/{ID} | {IN_POD}
    a pod without a container | {POD} | kubernetes {UID}
    another container of the reader's pod | /../cri-containerd-{ID}.scope | container {ID}
    Docker, systemd | /system.slice/docker-{ID}.scope | container {ID}
    Podman, systemd | /machine.slice/libpod-{ID}.scope/container | container {ID}
    Podman of a user | {MY}/user.slice/libpod-{ID}.scope/container | container {ID}
    """),
)
def test_the_folders_of_schedulers_and_runtimes_tell_job_and_container(
    path: str, expected: str
) -> None:
    assert member(f"0::{path}\n") == expected


UNNUMBERED = Job(SLURM, "sEKNKTV3WPV500")


@pytest.mark.parametrize(
    ("title", "uid", "job"),
    [
        ("slurmstepd: [4711.0]", 0, Job(SLURM, "4711")),
        ("slurmstepd: [4711.batch]", 0, Job(SLURM, "4711")),
        ("slurmstepd: [4711.0]", 1000, UNNUMBERED),  # a user's program calls itself so
        ("slurmstepd: [4711+1.0]", 0, UNNUMBERED),  # a component, whose number is another
        ("slurmstepd", 0, UNNUMBERED),  # it has not named itself yet
    ],
)
def test_the_number_of_a_job_by_its_sluid_is_in_the_title_of_a_slurmstepd_of_any_step(
    tmp_path: Path, title: str, uid: int, job: Job
) -> None:
    folder = f"{STEPS}/{UNNUMBERED.id}"
    mounts = "29 22 0:26 / /cg rw - cgroup2 cgroup rw"
    for path, text in (
        ("proc/self/mountinfo", mounts),
        (f"cg{folder}/step_batch/slurm/cgroup.procs", "70\n71\n"),
        ("proc/71/cmdline", title),
        ("proc/71/status", f"Name:\tslurmstepd\nUid:\t{uid}\t{uid}\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    its = membership(f"0::{folder}/step_0/user/task_0\n", str(tmp_path))
    assert (its.job, its.step) == (job, "0")


@pytest.mark.parametrize(
    "path",
    rows(f"""
    nowhere | /
    what is no pod's uid | /kubepods/burstable/pod-7
    a job that is no user's, v1 | /slurm/job_7/step_0
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
def test_a_cgroup_that_a_user_named_is_no_job(path: str) -> None:
    assert member(f"0::{path}\n") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("garbage\n0::\n", ""),
        ("11:memory:/user.slice\n9:cpuset:/slurm/uid_1/job_7/step_0\n", "slurm 7 step 0"),
        (f"9:cpuset:/docker/{ID}\n8:freezer:/slurm/uid_1/job_7/step_0\n", "slurm 7 step 0"),
        (f"5:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/init.scope\n", IN_POD),
        (f"5:devices:/\n0::/system.slice/docker-{ID}.scope\n", f"container {ID}"),
    ],
)
def test_the_job_may_be_in_any_line(text: str, expected: str) -> None:
    assert member(text) == expected


def test_systemds_service_is_read_from_the_cgroup() -> None:
    assert service("4:memory:/x\n1:name=systemd:/system.slice/a.service/sub\n") == "a.service"
    assert service("0::/user.slice/user-1000.slice/session-3.scope\n") is None
    assert service("0::/user.slice/my.service.d/x\n") is None
