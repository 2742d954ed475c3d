"""Every command of docs/kubernetes*.md, and of the chart's notes, in the order of the pages."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.check.blocks import BLOCKS
from tests.e2e.kubernetes import machine
from tests.e2e.kubernetes.adjusted import container, make_namespaces, removed, started
from tests.e2e.kubernetes.chart import LABEL, Chart, Job, named
from tests.e2e.kubernetes.cluster import NODE, Cluster, running
from tests.support.daemons import eventually
from tests.support.paths import REPOSITORY
from tests.support.tiny import CPUS, NEAR

#: A RuntimeClass as the GPU operator's, with the handler runc: the rig lacks NVIDIA's runtime.
CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"}


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    folder: Path

    @property
    def chart(self) -> Chart:
        return Chart(self.cluster)

    def run(self, *lines: str) -> str:
        """Run a page's commands, with the machine's files for the chart's daemon."""
        text = "\n".join(lines).replace(
            " deploy/helm/affinityd ", " deploy/helm/affinityd -f machine.json "
        )
        return self.cluster.run(f"set -e\ncd {self.folder}\n{text}")

    @contextmanager
    def running(self, line: str) -> Iterator[None]:
        """Run a command that ends in &, until the end of the block."""
        programs = self.folder.parent / "bin"
        path = f"{programs}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "KUBECONFIG": f"{programs}/kubeconfig"}
        command = [*self.cluster.network, "sh", "-c", f"exec {line.removesuffix('&')}"]
        with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as process:
            answers = "curl -sf http://127.0.0.1:9465/healthz"
            eventually(lambda: self.cluster.shell(answers).status == 0, "the port is forwarded")
            yield
            process.terminate()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        folder = cluster.folder / "site"
        folder.mkdir()
        (folder / "deploy").symlink_to(REPOSITORY / "deploy")
        (folder / "machine.json").write_text(json.dumps(machine.values()))
        cluster.load_affinityd()
        cluster.run(f"kubectl label node {NODE} {LABEL}")
        cluster.apply({**CLASS, "metadata": {"name": "nvidia"}})
        yield Site(cluster, folder)


def lines(page: str, place: int, **names: str) -> list[str]:
    """Return the commands of the `sh` block at this place among a page's `sh` blocks.

    Lines with `image=` are left out: the node has the image. `names`: a word → its replacement.
    """
    blocks = [it.text for it in BLOCKS if (it.page, it.kind) == (f"docs/{page}.md", "sh")]
    text = blocks[place].replace("\\\n", " ")
    for name, word in names.items():
        text = re.sub(rf"\b{name}\b", word, text)
    return [it for it in text.splitlines() if not it.startswith("image=")]


def test_the_install_commands_work(site: Site) -> None:
    *commands, test = lines("kubernetes", 0)
    site.run(*commands)
    with named(site.chart):
        assert "Phase:          Succeeded" in site.run(test)


def test_the_check_commands_work(site: Site) -> None:
    *shown, forward, ask = lines("kubernetes", 1)
    assert "GPU 1" in site.run(*shown)
    with site.running(forward):
        assert site.run(ask).split() == [str(cpu) for cpu in CPUS]
    job = Job(site.cluster, "early")
    job.start()
    job.says()
    printed = site.run(*lines("kubernetes", 2, POD=job.name))
    for line in (f"AFFINITYD_CPULIST={NEAR}", "AFFINITYD_LOCALITY=local", "from the daemon at"):
        assert line in printed


def test_the_commands_of_the_chart_s_notes_work(site: Site) -> None:
    notes = site.cluster.run("helm get notes affinityd --namespace affinityd").splitlines()
    commands = [it.strip() for it in notes if it.startswith("    ")]
    (forward,) = (it for it in commands if it.endswith("&"))
    others = [it for it in commands if it != forward]
    with site.running(forward), named(site.chart):
        site.run(*others)
    site.run(f"kubectl label node {NODE} {LABEL.split('=')[0]}-")
    eventually(lambda: not site.chart.pods(), "no node is chosen")
    name, desired, *_ = (
        site.run(next(it for it in others if "get daemonset" in it)).split("\n")[1].split()
    )
    assert (name, desired) == ("affinityd", "0"), "as the notes say"
    site.run(
        f"kubectl label node {NODE} {LABEL}",
        "kubectl -n affinityd rollout status daemonset/affinityd",
    )


def test_the_audit_commands_work(site: Site) -> None:
    (pid, *_) = Job(site.cluster, "early").pids
    for place, printed in ((0, "default"), (1, "GPU")):
        upgrade, *rest = lines("kubernetes-nodes", place, NODE=NODE, PID=str(pid))
        site.run(upgrade, "kubectl -n affinityd rollout status daemonset/affinityd")
        name = site.chart.pod()["metadata"]["name"]
        assert printed in site.run(*(re.sub(r"\bPOD\b", name, it) for it in rest))


def test_an_unchanged_pod_is_pinned_by_nri(site: Site) -> None:
    """The daemon reads the job's cpuset in the node's cgroups, and does not see the node's pids."""
    make_namespaces(site.cluster)
    (upgrade,) = lines("kubernetes-nri", 0)
    site.run(upgrade, "kubectl -n affinityd rollout status daemonset/affinityd")
    metric = "affinityd_nri_connected 1.0"
    eventually(lambda: metric in site.chart.ask("/metrics"), "the runtime knows the plugin")
    app = container("app", gpus=0, NVIDIA_VISIBLE_DEVICES="0")
    (process,) = started(site.cluster, "plain", app).values()
    assert (process.cpus, process.told["AFFINITYD_LOCALITY"]) == (NEAR, "local")
    assert process.has_socket
    removed(site.cluster)


def test_the_admission_policies_work(site: Site) -> None:
    """The API server itself changes the pod."""
    (site.folder / "pod.yaml").write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: changed}, spec: {containers: [{name: app, "
        "image: app, command: [train], resources: {limits: {nvidia.com/gpu: 1}}}]}}"
    )
    apply, label = lines("kubernetes-pods", 0)
    site.run("kubectl create namespace team-a", apply, label)

    def is_changed() -> bool:
        made = site.run(*lines("kubernetes-pods", 1))
        return "- /affinity/run" in made and "path: /run/affinityd" in made

    eventually(is_changed, "the policy is in effect")


def test_the_commands_to_upgrade_and_remove_work(site: Site) -> None:
    site.run(*lines("kubernetes", 3))
    site.run("kubectl -n affinityd rollout status daemonset/affinityd")
    site.run(*lines("kubernetes", 4))
    assert site.cluster.shell("kubectl get namespace affinityd").status == 1
