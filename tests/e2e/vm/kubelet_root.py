"""The root of a Debian with systemd, containerd and kubelet, and the control plane beside it."""

import fcntl
import lzma
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import RIGS
from tests.support.paths import REPOSITORY

PACKAGES = (
    *("systemd", "containerd", "runc", "etcd-server", "kubernetes-client"),
    *("busybox-static", "mount", "bpftool"),
)

#: Runs QEMU in a network with the API server; both end when this command ends.
CONTROL_PLANE = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child"),
    os.fspath(REPOSITORY / "tests/e2e/vm/control_plane.sh"),
)
#: QEMU's options for the guest's side of the network.
NETWORK = ("-netdev", "user,id=net", "-device", "e1000,bus=pcie.0,netdev=net,romfile=")


def kubelet_root() -> Path:
    """Return the root, made once and kept."""
    if os.geteuid() != 0 or not RIGS.exists():
        pytest.skip("only root runs a cluster, by the rig beside the checkout")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-vm"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / "forky"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make = [os.fspath(RIGS / "release.sh"), "make", root.name, *PACKAGES]
        environment = {**os.environ, "RIG_CACHE": os.fspath(cache)}
        subprocess.run(make, check=True, capture_output=True, env=environment)
        kubelet = root / "usr/local/bin/kubelet"
        half = kubelet.with_suffix(".half")
        half.write_bytes(lzma.decompress((RIGS / "k8s/kube.xz").read_bytes()))
        half.chmod(0o755)
        half.rename(kubelet)  # whole or not at all
    return root
