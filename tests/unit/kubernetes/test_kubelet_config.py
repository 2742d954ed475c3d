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


@pytest.mark.parametrize(
    ("command", "files", "expected"),
    [
        ("kubelet", {}, DEFAULTS),
        ("kubelet --config=/etc/k.yaml", {}, NOTHING),  # it cannot be read
        ("kubelet --config /etc/k.yaml", {"etc/k.yaml": HEAD}, DEFAULTS),
        ("kubelet --config k.yaml", {"etc/k.yaml": HEAD}, DEFAULTS),
        ("kubelet --config k.yaml", {"etc/k.yaml": f"{HEAD}: no key\n"}, DEFAULTS),
        ("kubelet --config=/etc/k", {"etc/k": "kind: Other\n"}, NOTHING),
        ("kubelet --config=/etc/k", {"etc/k": "{kind: KubeletConfiguration}"}, NOTHING),
        (
            "/usr/bin/kubelet --config=/etc/k.yaml",
            {"etc/k.yaml": WHOLE},
            {
                "cpu_policy": "static",
                "cpu_options": {"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"},
                "topology_policy": "none",
                "topology_scope": "pod",
                "topology_options": {
                    "prefer-closest-numa-nodes": "true",
                    "max-allowable-numa-nodes": "16",
                },
            },
        ),
        (
            "kubelet --config=/etc/k.json --config-dir=/etc/conf.d",
            {
                "etc/k.json": JSON,
                "etc/conf.d/10-a.conf": HEAD + "topologyManagerPolicy: best-effort",
                "etc/conf.d/20-team/1.conf": HEAD + 'topologyManagerPolicyOptions: {a: "b"}',
                "etc/conf.d/90-z.yaml": HEAD + "topologyManagerPolicy: none",
            },
            DEFAULTS
            | {
                "topology_policy": "best-effort",
                "topology_options": {"prefer-closest-numa-nodes": "true", "a": "b"},
            },
        ),
        ("kubelet --config-dir=/etc/none", {}, NOTHING),
        (
            BY_FLAGS,
            {},
            NOTHING
            | {
                "cpu_policy": "static",
                "cpu_options": {"a": "true", "b": "2"},
                "topology_policy": "single-numa-node",
                "topology_scope": "pod",
            },
        ),
        (  # the file was edited since
            "kubelet --config=/etc/k.yaml",
            {"etc/k.yaml": WHOLE, "var/lib/kubelet/cpu_manager_state": '{"policyName":"none"}'},
            {"cpu_policy": "none"},
        ),
        (
            "k3s server",
            {"var/lib/kubelet/cpu_manager_state": '{"policyName":"static","checksum":7}'},
            NOTHING | {"cpu_policy": "static"},
        ),
        ("kubelet", {"var/lib/kubelet/cpu_manager_state": "[]"}, DEFAULTS),
    ],
)
def test_the_settings_of_a_kubelet(
    proc: Path, command: str, files: dict[str, str], expected: dict[str, Any]
) -> None:
    (proc / str(PID) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    for name, content in files.items():
        (proc / str(PID) / "root" / name).write_text(content)
    found = read(PID, f"{proc}")
    assert {name: getattr(found, name) for name in expected} == expected
