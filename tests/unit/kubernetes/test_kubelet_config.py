"""The settings of a kubelet, as its command line, its files and its state have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from affinityd.kubernetes.kubelet_config import read

PID = 42
DEFAULTS = {
    "cpu_policy": "none",
    "cpu_options": {},
    "topology_policy": "none",
    "topology_scope": "container",
    "topology_options": {},
}
NOTHING = dict.fromkeys(DEFAULTS)
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
  full-pcpus-only: "true"
  'distribute-cpus-across-numa': "false"
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: "16"}
topologyManagerPolicy: null
"""
)
BY_FLAGS = (
    "kubelet --config=/etc/k --cpu-manager-policy static "
    "--topology-manager-scope=pod --topology-manager-policy=restricted "
    "--cpu-manager-policy-options a=true,b=2 --topology-manager-policy=single-numa-node"
)
JSON = """
{"kind": "KubeletConfiguration", "topologyManagerPolicy": "restricted", "port": 10250,
 "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}}
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc" / str(PID)
    (folder / "root/etc/conf.d/20-team").mkdir(parents=True)
    (folder / "root/var/lib/kubelet").mkdir(parents=True)
    (folder / "cwd").symlink_to("root/etc")
    return tmp_path / "proc"


OPTIONS = {"prefer-closest-numa-nodes": "true"}
BY_FILE = {
    "cpu_policy": "static",
    "cpu_options": {"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"},
    "topology_policy": "none",
    "topology_scope": "pod",
    "topology_options": {**OPTIONS, "max-allowable-numa-nodes": "16"},
}
FOLDER = {
    "etc/k.json": JSON,
    "etc/conf.d/10-a.conf": HEAD + "topologyManagerPolicy: best-effort",
    "etc/conf.d/20-team/1.conf": HEAD + 'topologyManagerPolicyOptions: {a: "b"}',
    "etc/conf.d/90-z.yaml": HEAD + "topologyManagerPolicy: none",
}
BY_FOLDER = {"topology_policy": "best-effort", "topology_options": {**OPTIONS, "a": "b"}}
OF_FLAGS = {
    "cpu_policy": "static",
    "cpu_options": {"a": "true", "b": "2"},
    "topology_policy": "single-numa-node",
    "topology_scope": "pod",
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
        (f"/usr/bin/{CONFIG}", {"etc/k.yaml": WHOLE}, BY_FILE),
        (BOTH, FOLDER, DEFAULTS | BY_FOLDER),
        ("kubelet --config-dir=/etc/none", {}, NOTHING),
        (BY_FLAGS, {}, NOTHING | OF_FLAGS),
        (CONFIG, NEWER, {"cpu_policy": "none"}),
        ("k3s server", {STATE: '{"policyName":"static","checksum":7}'}, {"cpu_policy": "static"}),
        ("kubelet", {STATE: "[]"}, DEFAULTS),
    ],
)
def test_the_settings_of_a_kubelet(
    proc: Path, command: str, files: dict[str, str], expected: dict[str, Any]
) -> None:
    (proc / str(PID) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    for name, content in files.items():
        (proc / str(PID) / "root" / name).write_text(content)
    settings = read(PID, f"{proc}")
    assert {name: getattr(settings, name) for name in expected} == expected
