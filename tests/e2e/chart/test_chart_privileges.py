"""The DaemonSet gives the daemon what the table of privileges says, by option, and nothing else."""

from __future__ import annotations

import pytest

from tests.e2e.chart.rendering import OPTIONS, container, daemon_set, pod
from tests.support import privileges

#: What a container sees of the node → the file of the table that it is.
SEEN = {"/host/cgroup": "/sys/fs/cgroup", "/var/log/pods": "/var/log/pods"}
POLICY = "/etc/affinityd"  #: the chart's own, from a ConfigMap
SOCKET = "/run/affinityd"


def features(option: str) -> set[str]:
    """Return what the daemon is to do, by its arguments; environments are read where asked for."""
    arguments = set(container(option)["args"])
    looks = "--scan-interval=off" not in arguments
    chosen = {"who asks", "TCP", "metrics"} if looks else {"TCP", "metrics"}
    chosen |= {"the audit of NVIDIA's", "the audit of AMD's"} if looks else set()
    chosen |= {"enforce observe"} if "--enforce=observe" in arguments else set()
    chosen |= {"enforce pin"} if "--enforce=pin" in arguments else set()
    chosen |= {"memory that follows"} if "--migrate-memory" in arguments else set()
    return chosen | ({"environments"} if "readEnvironments: true" in _values(option) else set())


def _values(option: str) -> str:
    return OPTIONS[option].read_text()


def needed(option: str, kind: str) -> set[str]:
    return set().union(*(privileges.needs(name, kind) for name in features(option)))


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_it_has_the_capabilities_of_its_features(option: str) -> None:
    capabilities = container(option)["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    assert set(capabilities.get("add", [])) == needed(option, "capabilities")


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_it_has_the_nodes_pids_where_a_feature_takes_them(option: str) -> None:
    has_pids = pod(option).get("hostPID", False)
    assert has_pids == ("pid" in needed(option, "namespaces")) or option == "no-audit"


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_it_sees_files_of_the_node_that_a_feature_reads_and_writes_to_its_folder(
    option: str,
) -> None:
    extra = {
        it["mountPath"]
        for it in daemon_set(option)["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    } - {SOCKET, POLICY, *SEEN}
    assert not extra or option == "extras"
    for mount in container(option)["volumeMounts"]:
        place = mount["mountPath"]
        assert mount.get("readOnly", False) == (place != SOCKET) or place in extra
        if place in SEEN:
            assert SEEN[place] in privileges.items("reads")
    assert container(option)["securityContext"]["readOnlyRootFilesystem"] is True
    assert set(privileges.items("writes")) == {SOCKET}
