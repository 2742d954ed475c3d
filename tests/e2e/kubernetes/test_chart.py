"""The chart on a real cluster, from `helm install` to `helm uninstall`, with jobs beside it."""

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

import pytest

from affinityd.linux.cgroup import mask_of
from tests.e2e.kubernetes import machine
from tests.e2e.kubernetes.chart import CHART, LABEL, PODS, SLEEPS, Chart, Job, named
from tests.e2e.kubernetes.cluster import AFFINITYD, NODE, Cluster
from tests.support.daemons import eventually
from tests.support.tiny import CPUS, NEAR, printed

USER, ANOTHER = 65532, 12345  #: the user of the image's daemon, and of an earlier daemon
PLAN = "/plan?gpus=all&mode=node&format=cpulist"
PINNED = f"Cpus_allowed_list:\t{NEAR}"

#: What `run` says without a daemon.
ALONE = "affinityd run: no affinityd is here to be asked; planned from /affinity/gpu"


@pytest.fixture(scope="module")
def values(cluster: Cluster) -> Mapping[str, Any]:
    """Return chart values for a node on which another user's daemon has left its folder."""
    folder = cluster.root / "run/affinityd"
    folder.mkdir(mode=0o700)
    (folder / "node.json").write_text("{}")
    os.chown(folder, ANOTHER, ANOTHER)
    return machine.values()


@pytest.fixture(scope="module")
def job(chart: Chart) -> Job:
    job = Job(chart.cluster, "early")
    job.start()
    return job


def test_a_job_is_pinned_by_the_daemon_of_its_node(job: Job) -> None:
    assert job.says() == {PINNED}
    (line,) = job.log("affinity")
    assert line.endswith("2 GPUs, from the daemon at /run/affinityd/affinityd.sock")


def test_the_init_step_gives_the_folder_to_a_daemon_that_has_no_privileges(chart: Chart) -> None:
    folder = chart.cluster.root / "run/affinityd"
    files = (folder, folder / "affinityd.sock", folder / "node.json")
    owned = [(file.stat().st_uid, stat.S_IMODE(file.stat().st_mode)) for file in files]
    assert owned == [(USER, 0o755), (USER, 0o666), (USER, 0o644)]
    assert json.loads(files[-1].read_text())["generation"] == 1
    status = chart.exec("cat /proc/1/status")
    uids = "\t".join(["Uid:", *([str(USER)] * 4)])
    for fact in (uids, "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert f"{fact}\n" in status
    assert "Read-only file system" in chart.shell("touch /var/tmp/a").stderr


def test_a_second_release_leaves_the_folder_to_the_daemon_that_answers_in_it(
    chart: Chart, values: Mapping[str, Any]
) -> None:
    """The second daemon would run as root, and take the folder from the first daemon's user."""
    run, second = chart.cluster.run, Chart(chart.cluster, "second")
    root = {**values, "kubernetes": {"nri": {"enabled": True}}}
    where = "--namespace second --create-namespace --values -"
    run(f"helm install affinityd {CHART} {where}", json.dumps(root))
    try:

        def log() -> str:
            words = f"logs -l {PODS} -c folder --tail=-1"
            return chart.cluster.shell(f"kubectl -n second {words}").stdout

        eventually(lambda: "another daemon answers in this folder" in log(), "it refuses")
        folder = chart.cluster.root / "run/affinityd"
        assert {it.stat().st_uid for it in (folder, *folder.iterdir())} == {USER}
    finally:
        second.uninstall()


def helm_test(chart: Chart) -> tuple[int, str]:
    """Return the status of `helm test`, and what its pod printed."""
    ended = chart.cluster.shell(f"helm test affinityd --namespace {chart.namespace} --logs")
    return ended.status, ended.stdout.partition("POD LOGS: affinityd-test\n")[2].strip()


def test_helm_test_prints_a_plan_fetched_over_the_service(chart: Chart) -> None:
    with named(chart):
        assert helm_test(chart) == (0, chart.ask(PLAN).strip())


def test_an_upgrade_turns_the_audit_on(chart: Chart, values: Mapping[str, Any], job: Job) -> None:
    """The daemon names a job that has no init container, and does not pin it."""
    before = {pid: mask_of(pid) for pid in job.pids}
    old = chart.pod()["metadata"]["uid"]
    audit = {"enabled": True, "runtimeClassName": ""}
    more = {"audit": audit, "settings": {"scanInterval": 1}}
    chart.helm("upgrade", {**values, **more})
    pod = chart.pod()
    assert pod["metadata"]["uid"] != old
    assert pod["spec"]["hostPID"] is True
    assert {pid: mask_of(pid) for pid in job.pids} == before
    plain = Job(chart.cluster, "plain")
    plain.start(command=SLEEPS)
    plain.wait_for("app")
    (pid, *_) = plain.pids
    machine.use(1, pid)
    eventually(lambda: "label the pod affinityd=on" in chart.exec("affinityd audit"), "it says so")
    assert mask_of(pid) == frozenset(CPUS)
    assert {pid: mask_of(pid) for pid in job.pids} == before


ASKS = """
import http.client, socket
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/affinityd/affinityd.sock")
connection.request("GET", "/audit")
print(connection.getresponse().read().decode())
"""


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_pod_sees_only_counts_of_another_pod_of_the_same_uid(chart: Chart, uid: int) -> None:
    cluster = chart.cluster
    socket = cluster.root / "run/affinityd/affinityd.sock"
    mount = {"name": "socket", "mountPath": "/run/affinityd"}
    main = {"name": "main", "image": AFFINITYD[0], "command": SLEEPS, "volumeMounts": [mount]}
    spec = {
        "securityContext": {"runAsUser": uid, "runAsGroup": uid},
        "volumes": [{"name": "socket", "hostPath": {"path": "/run/affinityd"}}],
        "containers": [main],
    }
    pids = [cluster.start_pod(f"{name}-{uid}", spec)[0] for name in ("theirs", "mine")]
    machine.use(0, pids[0])

    def seen_by_root() -> set[int]:
        document = json.loads(printed("curl", "-s", "--unix-socket", socket, "http://node/audit"))
        return {process["pid"] for process in document["processes"]}

    eventually(lambda: pids[0] in seen_by_root(), "root of the node sees it")
    document = json.loads(cluster.run(f"kubectl exec -i mine-{uid} -- python3 -", ASKS))
    assert not {"processes", "pin_overlaps"} & document.keys()
    assert sum(document["gpus"][0]["processes"].values()) >= 1
    cluster.run(f"kubectl delete pod theirs-{uid} mine-{uid} --now")


def test_a_job_starts_while_no_node_is_chosen_and_helm_test_says_so(chart: Chart) -> None:
    job = Job(chart.cluster, "meanwhile")
    job.start(held=True)
    job.wait_for("hold")
    chart.cluster.run(f"kubectl label node {NODE} {LABEL.split('=')[0]}-")
    eventually(lambda: not chart.pods(), "the daemon has gone")
    with named(chart):
        status, printed = helm_test(chart)
    assert (status, printed.partition(";")[0]) == (1, "no daemon is ready")
    assert "no node has any of the labels in gpuNodeLabels" in printed
    job.go()
    assert job.says() == {ALONE, PINNED}
    chart.cluster.run(f"kubectl label node {NODE} {LABEL}")
    eventually(lambda: [it["status"]["phase"] for it in chart.pods()] == ["Running"], "it is back")
    late = Job(chart.cluster, "late")
    late.start()
    assert late.says() == {PINNED}
    assert "from the daemon" in late.log("affinity")[-1]


def test_nothing_of_the_chart_remains_and_jobs_start_without_it(chart: Chart) -> None:
    chart.uninstall()
    eventually(lambda: not chart.pods(), "the daemon has gone")
    kinds = chart.cluster.run("kubectl api-resources --verbs=list --namespaced -o name").split()
    label = f"app.kubernetes.io/instance=affinityd {','.join(kinds)}"
    left = chart.cluster.run(f"kubectl get -A -o name -l {label}")
    assert left == "pod/affinityd-test\n"  # as the page says
    job = Job(chart.cluster, "orphan")
    job.start()
    assert job.says() == {ALONE, PINNED}
    (planned,) = job.log("affinity")
    assert "/affinity has the CPUs near 2 GPUs, from node.json: no daemon at " in planned
