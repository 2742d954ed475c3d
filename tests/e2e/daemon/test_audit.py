"""The daemon that looks at processes: a real one, real masks on real CPUs, a real NVML library.

The two CPUs are two NUMA nodes to it, and NVML's facts say who uses the GPU.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.owners import SLURMD
from affinityd.linux.processes import everyone
from tests.support.asked_node import AskedNode
from tests.support.children import program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import PATIENCE, eventually, open_files, running
from tests.support.job_cgroups import cgroup, pod_parts
from tests.support.made_nodes import DRIVER, entering, running_on
from tests.support.nvml.shared_object import environment
from tests.support.ports import free_port
from tests.support.tiny import BOTH, CPUS, FAR, NEAR, tiny

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and becomes other users")

UUID = "GPU-8a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"
ADMINS = 4242  #: a group that need have no name
POD = "0b7de3f1-51aa-9d02-4c1e-8a1f0c3ea001"

WITHOUT_PRIVILEGE = ("setpriv", "--bounding-set=-all", "--no-new-privs")

BECOME = "import os, sys; os.setgroups([]); os.setgid({0}); os.setuid({0}); "
WAIT = "print('ready', flush=True); sys.stdin.read()"
SPIN = "print('ready', flush=True)\nwhile True: pass"
FAR_CHILD = f"""
import os, sys
if os.fork() == 0:
    os.sched_setaffinity(0, {{{FAR}}})
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
ZOMBIE = """
import os, sys
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
sys.stdin.read()
"""


@dataclass
class Node(AskedNode):
    """A daemon on a machine with one GPU near CPU NEAR, and what its NVML says."""

    port: int

    def say(self, *pids: int, before: str = "") -> None:
        """Have NVML name these processes, from the next scan on."""
        self.tell(_facts(self.folder, pids, before))

    def processes(self) -> dict[int, Any]:
        return {process["pid"]: process for process in self.audit()["processes"]}

    def of_gpu(self, name: str) -> float | None:
        return self.samples(f"gpu_{name}").get(address())

    def mismatch(self) -> str:
        """Return the causes of the GPU's mismatch."""
        causes = self.samples("gpu_numa_mismatch", "cause")
        return " ".join(cause for cause, value in causes.items() if value)

    def wait_for(self, causes: str) -> None:
        eventually(
            lambda: self.samples("gpu_numa_mismatch", "cause") and self.mismatch() == causes,
            f"the mismatch is {causes or 'over'}",
        )


def address() -> str:
    """Return a PCI device of this machine, which NVML will call its GPU."""
    return min(path.name for path in Path("/sys/bus/pci/devices").iterdir())


def _facts(folder: Path, pids: Sequence[int], before: str = "") -> str:
    processes = [f"process compute {pid} {2**20}" for pid in pids]
    gpu = ["gpu", f"uuid {UUID}", f"pci 0000{address()}", "minor 0", f"node {NEAR}", *processes]
    return "\n".join((f"driver {DRIVER}", f"device {folder / 'nvidiactl'}", before, *gpu, ""))


@contextmanager
def auditing(
    *arguments: str, namespaces: Sequence[str] = (), before: Sequence[str] = ()
) -> Iterator[Node]:
    """Run a daemon that scans every second; what it is run by comes `before`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # other users ask, too
        (folder / "nvidiactl").touch()
        port = free_port()
        with running_on(
            tiny(),
            folder,
            _facts(folder, ()),
            *("--scan-interval", "1", *arguments),
            listen=f"127.0.0.1:{port}",
            namespaces=namespaces,
            before=before,
        ) as daemon:
            node = Node(daemon, folder, port)
            eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
            yield node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with auditing("--admin-group", str(ADMINS), "--job-series", "3") as node:
        yield node


@pytest.fixture(autouse=True)
def nobody(request: pytest.FixtureRequest) -> None:
    """Begin with a GPU that nobody uses."""
    if "node" in request.fixturenames:
        node = request.getfixturevalue("node")
        node.say()
        eventually(lambda: node.audit()["processes"] == [], "nobody uses the GPU")


@contextmanager
def pinned(cpus: set[int], code: str = f"import sys; {WAIT}") -> Iterator[int]:
    """Run a program on these CPUs; yield its pid."""
    with program(f"import os; os.sched_setaffinity(0, {cpus}); {code}") as child:
        yield child.pid


def test_a_process_that_is_repinned_between_scans_turns_the_metric(node: Node) -> None:
    with sleeping() as child:
        subprocess.run(["taskset", "-cp", FAR, str(child.pid)], check=True, capture_output=True)
        node.say(child.pid)
        node.wait_for("mask")
        began = node.of_gpu("numa_mismatch_start_timestamp_seconds")
        assert began is not None
        assert time.time() - PATIENCE < began <= time.time()
        assert node.samples("gpu_processes", "placement")["remote"] == 1
        subprocess.run(["taskset", "-cp", NEAR, str(child.pid)], check=True, capture_output=True)
        node.wait_for("")
        assert node.of_gpu("numa_mismatch_start_timestamp_seconds") is None
        assert node.samples("gpu_processes", "placement")["local"] == 1
    lines = [line for line in node.daemon.lines if f"({address()})" in line]
    assert (
        f"warning: nvidia GPU 0 ({address()}): 1 of its processes may run far from it" in lines[0]
    )
    assert lines[1] == f"info: nvidia GPU 0 ({address()}): its processes are near it again, or gone"


def test_a_process_that_nobody_pinned_is_told_as_such(node: Node) -> None:
    with pinned(set(CPUS)) as pid:
        node.say(pid)
        node.wait_for("unpinned")
        (process,) = node.audit()["processes"]
        assert (process["placement"], process["threads"][0]["cpulist"]) == ("unpinned", BOTH)
        assert process["remedy"]


@needs_cpuset
def test_a_process_whose_cpuset_has_no_near_cpu_was_allocated_so(node: Node) -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cpuset.cpus").write_text(FAR)
        (folder / "tasks").write_text(str(child.pid))
        node.say(child.pid)
        node.wait_for("allocation")
        assert node.processes()[child.pid]["cpuset"] == FAR
        child.kill()
        child.wait()


@needs_cpuset
def test_a_pods_process_counts_for_the_pod(node: Node) -> None:
    with cgroup(*pod_parts(POD), cpus=BOTH) as container, pinned({int(FAR)}) as pid:
        (container / "tasks").write_text(str(pid))
        os.sched_setaffinity(pid, {int(FAR)})
        node.say(pid)
        node.wait_for("mask")
        assert node.processes()[pid]["job"]["id"] == POD
        assert node.samples("job_mismatched_gpus", "job_id")[POD] == 1
        os.kill(pid, 9)


def test_a_child_that_uses_no_gpu_is_its_parents(node: Node) -> None:
    code = f"import os; os.sched_setaffinity(0, {{{NEAR}}}); {FAR_CHILD}"
    with program(code.replace("; \n", "\n")) as parent:
        node.say(parent.pid)
        node.wait_for("mask")
        of_parent, of_child = sorted(
            node.processes().values(), key=lambda process: not process["holds_gpu"]
        )
        assert (of_parent["pid"], of_parent["placement"]) == (parent.pid, "local")
        assert (of_child["parent"], of_child["placement"]) == (parent.pid, "remote")
        assert (of_child["gpu"], of_child["gpu_memory_bytes"]) == (0, None)


def test_remote_cpu_seconds_grow_while_it_works_far_away_and_only_then(node: Node) -> None:
    def seconds(kind: str) -> float:
        value = node.of_gpu(f"{kind}cpu_seconds_total")
        assert value is not None
        return value

    with pinned({int(FAR)}, f"\n{SPIN}") as pid:
        node.say(pid)
        node.wait_for("mask")
        before = seconds("remote_")
        eventually(lambda: seconds("remote_") >= before + 1, "it has worked far away for a second")
        os.sched_setaffinity(pid, {int(NEAR)})
        node.wait_for_scans(2)  # the first may have begun before
        remote, total = seconds("remote_"), seconds("")
        eventually(lambda: seconds("") >= total + 1, "it has worked near for a second")
        assert seconds("remote_") == remote


def test_a_process_that_was_killed_is_gone_and_one_that_the_driver_still_names_an_orphan(
    node: Node,
) -> None:
    with pinned({int(FAR)}) as pid:
        node.say(pid)
        node.wait_for("mask")
    eventually(lambda: node.of_gpu("orphan_processes") == 1, "it is an orphan")
    assert node.processes()[pid]["orphan"]
    assert node.mismatch() == ""
    node.say()
    eventually(lambda: node.of_gpu("orphan_processes") == 0, "it is gone")


def test_a_job_with_nohup_is_to_be_pinned_and_no_orphan_before_its_owner_has_left(
    node: Node,
) -> None:
    if any(stat.name == SLURMD for stat in everyone()):
        pytest.skip("Slurm runs on this machine, and is to own what its users start")
    user = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
    job = "(nohup sh -c 'echo $$ && exec sleep 600 >/dev/null 2>&1' &); read line"
    with subprocess.Popen(
        [*user, "sh", "-c", job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as session:
        assert session.stdout is not None
        pid = int(session.stdout.readline())
        try:
            node.say(pid)
            node.wait_for("unpinned")
            eventually(lambda: node.processes()[pid]["parent"] == 1, "it is left behind")
            found = node.processes()[pid]
            assert found["orphan"] is None
            assert f"affinityd pin --gpus {UUID} {pid} " in found["remedy"]
            assert node.of_gpu("orphan_processes") == 0
            session.communicate("\n")
            eventually(lambda: node.of_gpu("orphan_processes") == 1, "its owner has left")
            found = node.processes()[pid]
            assert "has no session left" in found["orphan"]
            assert f"affinityd pin --gpus {UUID} {pid} " in found["remedy"]
            assert "kill" not in found["remedy"]
        finally:
            os.kill(pid, signal.SIGKILL)


def test_a_zombie_is_an_orphan(node: Node) -> None:
    with program(ZOMBIE) as parent:
        (pid,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        node.say(int(pid))
        eventually(lambda: node.of_gpu("orphan_processes") == 1, "it is an orphan")
        assert node.processes()[int(pid)]["state"] == "Z"


def test_root_sees_all_a_user_his_own_the_admins_all_and_tcp_counts(node: Node) -> None:
    with (
        program(BECOME.format(1234) + WAIT) as one,
        program(BECOME.format(1235) + WAIT) as other,
        sleeping() as roots,
    ):
        everybody = {child.pid for child in (one, other, roots)}
        node.say(*everybody)
        eventually(lambda: node.processes().keys() == everybody, "all are seen")

        def seen(answer: Any) -> tuple[str, set[int]]:  # noqa: ANN401 - a document
            assert answer["gpus"][0]["processes"]["unpinned"] == 3
            return answer["sees"], {process["pid"] for process in answer["processes"]}

        assert seen(node.audit()) == ("all", everybody)
        assert seen(node.ask_as(1234)) == ("own", {one.pid})
        assert seen(node.ask_as(1236)) == ("own", set())
        assert seen(node.ask_as(1236, ADMINS)) == ("all", everybody)
        assert node.processes()[one.pid]["uid"] == 1234
        with closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE)) as tcp:
            tcp.request("GET", "/audit")
            counts = json.load(tcp.getresponse())
        assert (counts["sees"], "processes" in counts) == ("counts", False)
        assert counts["gpus"][0]["processes"]["unpinned"] == 3


def test_while_nvml_is_silent_nothing_is_said_of_the_gpus_processes(node: Node) -> None:
    with pinned({int(FAR)}) as pid:
        node.say(pid)
        node.wait_for("mask")
        node.say(pid, before="fail nvmlInitWithFlags 999")
        eventually(lambda: node.of_gpu("audited") == 0, "its processes are not known")
        for name in ("numa_mismatch", "processes", "threads", "orphan_processes"):
            assert node.of_gpu(name) is None
        assert node.audit()["gpus"][0]["unknown"]
        node.say(pid)
        node.wait_for("mask")
        assert node.of_gpu("audited") == 1


def test_while_the_driver_is_unloaded_there_is_no_gpu_and_nvml_is_not_asked(node: Node) -> None:
    version = node.folder / "driver/nvidia/version"
    text = version.read_text()
    version.unlink()
    try:
        node.say(before="fail nvmlInitWithFlags hang")
        eventually(lambda: node.audit()["gpus"] == [], "it has no GPU")
        node.wait_for_scans(2)
        assert not node.audit()["notices"]
    finally:
        node.say()
        version.write_text(text)
    eventually(lambda: node.of_gpu("audited") == 1, "the GPU is back")


def test_nothing_of_nvidias_is_held_between_scans(node: Node) -> None:
    daemon = Path(f"/proc/{node.daemon.process.pid}")

    def children() -> str:
        return "".join(path.read_text() for path in daemon.glob("task/*/children"))

    node.wait_for_scans(1)
    eventually(lambda: children() == "", "nobody asks NVML")
    assert node.folder / "nvidiactl" not in open_files(node.daemon.process.pid)
    assert "libnvidia-ml" not in (daemon / "maps").read_text()


def test_a_plan_is_made_while_nvml_hangs(node: Node) -> None:
    node.say(before="fail nvmlInitWithFlags hang")
    last = node.audit()["time"]
    time.sleep(1.5)
    assert node.daemon.get("/plan?gpus=0&mode=node").status == 200
    (age,) = node.samples("scan_age_seconds").values()
    assert (node.audit()["time"], age > 1) == (last, True)


def test_root_without_any_privilege_sees_other_users_processes() -> None:
    with (
        auditing(before=WITHOUT_PRIVILEGE) as node,
        program(BECOME.format(1234) + f"os.sched_setaffinity(0, {{{FAR}}}); {WAIT}") as child,
    ):
        node.say(child.pid)
        node.wait_for("mask")
        assert node.processes()[child.pid]["uid"] == 1234
        assert node.audit()["notices"] == []


def test_a_user_that_is_not_mapped_here_sees_counts() -> None:
    with auditing(namespaces=("--map-root-user",)) as node:
        assert node.ask_as(1234)["sees"] == "counts"
        assert node.ask_as(0)["sees"] == "all"


def test_a_daemon_that_is_told_not_to_look_says_so(tmp_path: Path) -> None:
    with running(tmp_path, "--scan-interval", "off") as daemon:
        reply = daemon.get("/audit", accept="text/plain")
        assert reply.status == 503
        assert (
            reply.text == "No scan: this daemon looks at no processes: its scan interval is off\n"
        )


def test_the_doctor_waits_for_nvml_5_s_and_only_for_checks_that_want_it(tmp_path: Path) -> None:
    command = [*entering(tiny(), tmp_path), sys.executable, "-m", "affinityd", "doctor", "--json"]
    env = {**os.environ, **environment("fail nvmlInitWithFlags hang\n", tmp_path)}

    def seconds(check: str) -> float:
        began = time.monotonic()
        subprocess.run([*command, check], env=env, stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - began

    without, waited = seconds("isolcpus"), seconds("nvml")
    assert max(5, without) <= waited < PATIENCE
