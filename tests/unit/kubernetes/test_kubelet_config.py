"""The settings of a kubelet, as its command line, its files and its state have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.audit.model import KubeletConfig
from affinityd.kubernetes.kubelet_config import read

PID = 42
DEFAULTS = KubeletConfig("none", "none")
NOTHING = KubeletConfig()
HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
WHOLE = (
    HEAD
    + """\
authentication:
  webhook: {enabled: false}
clusterDNS:
- 10.96.0.10   # cpuManagerPolicy: none
cpuManagerPolicy: "static" # of the team
cpuManagerPolicyOptions:
  topologyManagerPolicy: "true"
topologyManagerPolicy: null
"""
)
BY_FLAGS = (
    "kubelet --config=/etc/k --cpu-manager-policy static "
    "--topology-manager-policy=restricted --topology-manager-policy=single-numa-node"
)
JSON = """
{"kind": "KubeletConfiguration", "topologyManagerPolicy": "restricted", "port": 10250}
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc" / str(PID)
    (folder / "root/etc/conf.d/20-team").mkdir(parents=True)
    (folder / "root/var/lib/kubelet").mkdir(parents=True)
    (folder / "cwd").symlink_to("root/etc")
    return tmp_path / "proc"


FOLDER = {
    "etc/k.json": JSON,
    "etc/conf.d/10-a.conf": HEAD + "topologyManagerPolicy: best-effort",
    "etc/conf.d/20-team/1.conf": HEAD + 'cpuManagerPolicy: "static"',
    "etc/conf.d/90-z.yaml": HEAD + "topologyManagerPolicy: none",
}
STATE = "var/lib/kubelet/cpu_manager_state"
NEWER = {"etc/k.yaml": WHOLE, STATE: '{"policyName":"none"}'}  #: the file was edited since
CONFIG, BOTH = (
    "kubelet --config=/etc/k.yaml",
    "kubelet --config=/etc/k.json --config-dir=/etc/conf.d",
)


@pytest.mark.parametrize(
    ("command", "files", "expected"),
    [
        ("kubelet", {}, DEFAULTS),
        (CONFIG, {}, NOTHING),  # it cannot be read
        ("kubelet --config /etc/k.yaml", {"etc/k.yaml": HEAD}, DEFAULTS),
        ("kubelet --config k.yaml", {"etc/k.yaml": f"{HEAD}: no key\n"}, DEFAULTS),
        (CONFIG, {"etc/k.yaml": "kind: Other\n"}, NOTHING),
        (CONFIG, {"etc/k.yaml": "{kind: KubeletConfiguration}"}, NOTHING),
        (f"/usr/bin/{CONFIG}", {"etc/k.yaml": WHOLE}, KubeletConfig("static", "none")),
        (BOTH, FOLDER, KubeletConfig("static", "best-effort")),
        ("kubelet --config-dir=/etc/none", {}, NOTHING),
        (BY_FLAGS, {}, KubeletConfig("static", "single-numa-node")),
        (CONFIG, NEWER, KubeletConfig("none", "none")),
        ("k3s server", {STATE: '{"policyName":"static","checksum":7}'}, KubeletConfig("static")),
        ("kubelet", {STATE: "[]"}, DEFAULTS),
    ],
)
def test_the_settings_of_a_kubelet(
    proc: Path, command: str, files: dict[str, str], expected: KubeletConfig
) -> None:
    (proc / str(PID) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    for name, content in files.items():
        (proc / str(PID) / "root" / name).write_text(content)
    assert read(PID, f"{proc}") == expected
