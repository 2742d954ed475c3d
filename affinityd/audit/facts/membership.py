"""The job and container of a process, by the paths of its cgroups. Pure: it reads no file.

Only names by root count: below a `user.slice` any user may name a cgroup, and
elsewhere a job's number counts in Slurm's own folders alone.

Sources: cgroups(7); Slurm's src/plugins/cgroup/v1 and v2, cgroup.conf(5) "CgroupSlice" and
"CgroupJobIdPaths"; the kubelet's pkg/kubelet/cm/cgroup_manager_linux.go (what either driver calls a
pod), containerd's, CRI-O's, Docker's and Podman's names of a container; cgroup_namespaces(7).
"""

from __future__ import annotations

import re

from affinityd.audit.facts.job import KUBERNETES, SLURM, Job, Membership
from affinityd.linux.cgroup import hierarchies

_HEX = "[0-9a-f]"
#: A pod's uid; of a static pod, the hash of its manifest.
_UID = rf"{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
_ID = rf"{_HEX}{{64}}"
SHORT = 12  #: characters of a container's id

# For paths that end with a slash: a part that begins with one is a folder's full name.

#: To a reader in a cgroup namespace, paths outside of it begin with `..`.
_beside = re.compile(r"(?:/\.\.)+(?=/)").match
_users = re.compile(r"/(?:user(?:-\d+)?\.slice|user@\d+\.service)(?=/)").search
#: A job of Slurm 26.05 may go by its SLUID.
_slurm = re.compile(
    r"/(?:slurm(?:_[^/]+)?/uid_\d+|(?:[^/]+_)?slurmstepd\.scope)"  # v1, v2
    r"/(?:job_(?P<job>[0-9]{1,10})|s[0-9A-Z]{13})(?=/)"
    r"(?:/step_(?P<step>[^/]+))?"
).search
#: The pod's slice of the systemd driver; containerd without systemd puts its container behind it.
_pods = re.compile(
    rf"/(?:(?:kubelet-)?kubepods(?:-burstable|-besteffort)?-pod(?P<slice>{_UID})\.slice"
    rf"(?::[^:/]+:(?P<container>{_ID}))?|pod(?P<folder>{_UID}))(?=/)"
).finditer
#: A conmon is not in the container that it watches.
_container_folder = re.compile(
    rf"/(?![^/]*conmon-)(?:[a-z]+-)*(?P<id>{_ID})(?:\.scope)?(?=/)"
).search


def membership(cgroup_text: str) -> Membership:
    """Return the job and container of a process, by its /proc/PID/cgroup.

    The first line with a job counts: in a hybrid hierarchy some lines have none. A process in
    a container that no scheduler started has a container and no job; of a job that goes by its
    SLUID only the step is known.
    """
    found = [_of_path(path) for _, path in hierarchies(cgroup_text)]
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


def short_id(path: str) -> str:
    """Return the id of the outermost container in a path as runtimes show it: 12 characters."""
    return (_container(f"{path}/") or path)[:SHORT]


def _of_path(path: str) -> Membership:
    path = f"{path}/"
    beside, users = _beside(path), _users(path)
    of_root = path[: users.start() + 1] if users else path
    if slurm := _slurm(of_root):
        return Membership(
            Job(SLURM, slurm["job"]) if slurm["job"] else None,
            slurm["step"],
            container=_container(of_root[slurm.end() :]),
            outside=_container(of_root[: slurm.start() + 1]),
        )
    for pod in _pods(of_root):
        # Paths outside of the reader's namespace may lack upper folders, such as kubepods.
        if pod["slice"] or beside or "/kubepods/" in of_root[: pod.start() + 1]:
            return Membership(
                Job(KUBERNETES, (pod["slice"] or pod["folder"]).replace("_", "-")),
                container=pod["container"] or _container(of_root[pod.end() :]),
            )
    return Membership(container=_container(path))


def _container(path: str) -> str | None:
    """Return the outermost container's id; containers inside it do not count."""
    found = _container_folder(path)
    return found["id"] if found else None
