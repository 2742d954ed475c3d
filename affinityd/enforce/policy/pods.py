"""The pods of this node, by the folders in which the kubelet keeps their logs.

They are called NAMESPACE_NAME_UID: kubelet pkg/kubelet/kuberuntime/helpers.go
`BuildPodLogsDirectory`. Neither a namespace nor a pod's name has a `_` in it (RFC 1123), and the
uid is that of the pod's cgroup: of a static pod, the hash of its manifest. No file of the node has
a pod's labels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from affinityd.linux.files import listed

PODS = "/var/log/pods"

AGAIN = 5.0  #: seconds after which a pod that was not there is looked for again


@dataclass(frozen=True)
class Pod:
    """What Kubernetes calls a pod."""

    namespace: str
    name: str


class Pods:
    """Remembers the pods, and lists them when one is asked for that is not known."""

    def __init__(self, folder: str = PODS) -> None:
        """Take where the pods' folders are."""
        self._folder = folder
        self._known: dict[str, Pod] = {}
        self._next = 0.0  # time.monotonic() from which on they may be listed again

    def of(self, uid: str) -> Pod | None:
        """Return the pod that has this uid; None where no folder says so."""
        if uid not in self._known and time.monotonic() >= self._next:
            self._next = time.monotonic() + AGAIN
            self._known = dict(map(_pod, listed(self._folder)))
        return self._known.get(uid)


def _pod(folder: str) -> tuple[str, Pod]:
    """Return a pod's uid, and the pod, by its folder."""
    named, _, uid = folder.rpartition("_")
    namespace, _, name = named.partition("_")
    return uid, Pod(namespace, name)
