"""What the rig lacks of a cluster: CoreDNS's name and kube-proxy's address for a Service."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.kubernetes.chart import Chart
from tests.support.daemons import PATIENCE, eventually

DNS = "10.96.0.10"  #: kubelet's clusterDNS, in the rig
PORT = 9466


@contextmanager
def named(chart: Chart, endpoint: str = "") -> Iterator[None]:
    """Have the name of the chart's Service answer DNS, and its address reach the daemon's pod.

    `endpoint`: the address that it reaches instead.
    """
    run = chart.cluster.run
    service = chart.cluster.get("service", "affinityd", "-n", chart.namespace)
    address, name = service["spec"]["clusterIP"], f"affinityd.{chart.namespace}"
    to = endpoint or _endpoint(chart)
    rule = f"PREROUTING -d {address} -p tcp --dport {PORT} -j DNAT --to {to}:{PORT}"
    run(f"sysctl -qw net.ipv4.ip_forward=1; ip address add {DNS}/32 dev lo")
    run(f"iptables -t nat -A {rule}")
    resolver = (
        f"dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root --no-hosts "
        f"--no-resolv --bind-interfaces --listen-address={DNS} --host-record={name},{address}"
    )
    command = [*chart.cluster.network, *shlex.split(resolver)]
    with subprocess.Popen(command) as process:
        try:
            eventually(lambda: _listens(chart), "the names are answered")
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)
            run(f"iptables -t nat -D {rule}; ip address del {DNS}/32 dev lo")


def _endpoint(chart: Chart) -> str:
    """Return the address to which kube-proxy would send what comes for the Service."""
    label = "kubernetes.io/service-name=affinityd"
    (part,) = chart.cluster.get("endpointslices", "-n", chart.namespace, "-l", label)["items"]
    (endpoint,) = part["endpoints"]
    (address,) = endpoint["addresses"]
    assert endpoint["conditions"]["ready"]
    return str(address)


def _listens(chart: Chart) -> bool:
    return chart.cluster.shell(f"ss -Hlun src {DNS}:53 | grep -q .").status == 0
