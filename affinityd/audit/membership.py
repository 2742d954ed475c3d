"""The job and container of a process, by the paths of its cgroups. Pure: it reads no file.

Only what root names is believed: below a `user.slice` anybody may call a cgroup as they like, and
elsewhere a job's number counts in Slurm's own folders alone.

Sources: cgroups(7); Slurm's src/plugins/cgroup/v1 and v2, cgroup.conf(5) "CgroupSlice" and
"CgroupJobIdPaths"; the kubelet's pkg/kubelet/cm/cgroup_manager_linux.go (what either driver calls a
pod), containerd's, CRI-O's, Docker's and Podman's names of a container; cgroup_namespaces(7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile

from affinityd.audit.model import KUBERNETES, SLURM, Job, Membership

#: What the kernel appends to the path of a cgroup that is no more.
DELETED = " (deleted)"

#: Levels of a path that are looked at: anybody may make thousands below their own cgroup.
MOST_LEVELS = 64

_HEX = "[0-9a-f]"
#: A pod's uid; of a static pod, the hash of its manifest.
_UID = rf"{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
_ID = rf"{_HEX}{{64}}"

_is_users = re.compile(r"user(?:-\d+)?\.slice|user@\d+\.service").fullmatch
_is_slurm_v1 = re.compile(r"slurm(?:_.+)?").fullmatch
_is_slurm_v2 = re.compile(r"(?:.+_)?slurmstepd\.scope").fullmatch
_is_uid = re.compile(r"uid_\d+").fullmatch
_job = re.compile(r"job_(\d{1,10})", re.ASCII).fullmatch
_is_sluid = re.compile(r"s[0-9A-Z]{13}").fullmatch
_step = re.compile(r"step_(.+)").fullmatch
#: The pod's slice of the systemd driver; containerd without systemd puts its container behind it.
_pod_slice = re.compile(
    rf"(?:kubelet-)?kubepods(?:-burstable|-besteffort)?-pod({_UID})\.slice(?::[^:]+:({_ID}))?"
).fullmatch
_pod_folder = re.compile(rf"pod({_UID})").fullmatch
_container_folder = re.compile(rf"(?:[a-z]+-)*({_ID})(?:\.scope)?").fullmatch


def membership(cgroup_text: str) -> Membership:
    """Return the job and container of a process, by its /proc/PID/cgroup.

    The first line that tells a job is taken: in a hybrid hierarchy not every one does. A process in
    a container that no scheduler started has a container and no job. A job of Slurm 26.05 whose
    folder goes by its SLUID tells no number: only the step is known.
    """
    found = [_of_path(path) for path in _paths(cgroup_text)]
    in_a_job = (it for it in found if it.job or it.step)
    in_a_container = (it for it in found if it.container)
    return next(in_a_job, next(in_a_container, Membership()))


def service(cgroup_text: str) -> str | None:
    """Return systemd's service of a process, by its /proc/PID/cgroup; None: it is of none."""
    parts = (part for line in cgroup_text.split("\n") for part in line.split("/"))
    return next((part for part in parts if part.endswith(".service")), None)


def is_slurms(job: Job | None) -> bool:
    """Whether Slurm has started a job."""
    return job is not None and job.scheduler == SLURM


def chosen_for(folder: str | None) -> Job | None:
    """Return the job that a cgroup is of, by its folder."""
    return None if folder is None else _of_path(folder).job


def _paths(cgroup_text: str) -> Iterator[str]:
    """Yield the cgroup in each hierarchy, by lines `ID:controller,…:/path`."""
    for line in cgroup_text.split("\n"):
        _, _, path = line.partition(":")[2].partition(":")
        yield path.removesuffix(DELETED)


def _of_path(path: str) -> Membership:
    parts = [part for part in path.split("/", MOST_LEVELS) if part]
    # To a reader in a cgroup namespace, what is beside it begins with `..` up to what they share.
    told = list(dropwhile(lambda part: part == "..", parts))
    roots = list(takewhile(lambda part: not _is_users(part), told))
    return (
        _of_slurm(roots)
        or _of_pod(roots, is_beside=len(told) < len(parts))
        or Membership(container=_container(told))
    )


def _of_slurm(parts: Sequence[str]) -> Membership | None:
    """Return what the folders below Slurm's tell; None where there are none."""
    for place, part in enumerate(parts):
        if _is_slurm_v2(part):
            return _of_job(parts[place + 1 :], _container(parts[:place]))
        if _is_slurm_v1(part) and any(map(_is_uid, parts[place + 1 : place + 2])):
            return _of_job(parts[place + 2 :], _container(parts[:place]))
    return None


def _of_job(parts: Sequence[str], outside: str | None) -> Membership | None:
    """Return the job, by folders `job_7/step_0/…`; None for what is Slurm's own."""
    folder, step_folder, *rest = (*parts, "", "")
    job, step = _job(folder), _step(step_folder)
    if not (job or _is_sluid(folder)):
        return None
    return Membership(
        job=Job(SLURM, job[1]) if job else None,
        step=step[1] if step else None,
        container=_container(rest),
        outside=outside,
    )


def _of_pod(parts: Sequence[str], *, is_beside: bool) -> Membership | None:
    """Return the pod and its container; None where there is no pod's folder.

    Of what is beside the reader, the folders above, kubepods among them, may be left out.
    """
    for place, part in enumerate(parts):
        by_slice = _pod_slice(part)
        is_below = is_beside or "kubepods" in parts[:place]
        pod = by_slice or (_pod_folder(part) if is_below else None)
        if pod:
            return Membership(
                Job(KUBERNETES, pod[1].replace("_", "-")),
                container=(by_slice and by_slice[2]) or _container(parts[place + 1 :]),
            )
    return None


def _container(parts: Sequence[str]) -> str | None:
    """Return the outermost container's id: those inside of it do not count.

    A conmon is not in the container that it watches.
    """
    found = (_container_folder(part) for part in parts if "conmon-" not in part)
    return next((folder[1] for folder in found if folder), None)
