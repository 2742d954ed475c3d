"""Runs in the virtual machine: pods of a real kubelet and containerd on cgroup v2, by systemd."""

import errno
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd.daemon import nri
from affinityd.linux.files import environment_of
from tests.e2e.vm.guest_slices import have_patience, hold_gpus
from tests.e2e.vm.inside import GROUPS, RELEASE, Document, Ended, bring, output, stage, thread_masks
from tests.e2e.vm.two_nodes import GPU_NODES
from tests.e2e.vm.warm import affinityd, serving
from tests.support.daemons import Daemon, eventually

ROOT = Path("/", RELEASE)
IMAGE = "localhost/busybox:tests"
NODE = Path("/checkout/tests/e2e/vm/node")  #: files of the node's root that are not Debian's
SLEEPS = ["/bin/busybox", "sleep", "100000"]
API = ("10.0.2.2", 8001)  #: where QEMU shows control_plane.sh's API server
PODS = "/api/v1/namespaces/default/pods"
GPUS = (0, 1, 4)  #: the GPUs that kubelet knows, for three pods; two GPUs are on node 1
NVIDIA = 195  #: the major of /dev/nvidia*, kernel Documentation/admin-guide/devices.txt
BESIDE = 5  #: a GPU that a container can open though its spec lacks it
PARTITION = GROUPS / "isolated"  #: a cgroup beside kubepods.slice
PARTITION_CPUS, OTHER_CPUS = "0-1,16-17", "2-15,18-31"


def main() -> Document:
    nri.SYNCHRONIZE_SECONDS = nri.KUBELET_SECONDS = 100.0  # seconds; an emulated CPU is slow
    bring("31", online=True)
    hold_gpus()
    have_patience(Path("/usr/bin"))
    for minor in range(len(GPU_NODES)):
        make_device_file(Path("/dev"), minor)
    node = boot_node()
    try:
        return look_at_pods(node)
    except BaseException:
        sys.stderr.write(node.run("journalctl", "--no-pager", "-n", "40"))
        raise


def look_at_pods(node: "Node") -> Document:
    seen: Document = {}
    with node.kubelet():
        stage("pods start without the daemon")
        node.start("early")
        node.start("beside", beside=str(BESIDE))
        beside = node.program("beside")
        make_device_file(Path(f"/proc/{beside.pid}/root/dev"), BESIDE)
        seen["not let in"] = beside.opens(BESIDE)
        let_in(node, beside)
        seen["let in"] = beside.opens(BESIDE)
        early = node.program("early")
        stage("the daemon starts")
        with node.daemon() as daemon:
            eventually(lambda: daemon.says("its CPUs stay"), "the daemon knows the pods")
            eventually(lambda: thread_masks(early.pid) != ["0-31"], "the runtime has changed it")
            seen["synchronized"] = node.look(daemon, "early", "beside")
            stage("pods start with the daemon")
            node.start("one")
            node.start("two")
            seen["created"] = node.look(daemon, "one", "two")
        stage("the daemon starts again")
        with node.daemon() as daemon:
            eventually(lambda: daemon.says("its CPUs stay"), "the daemon knows the pods")
            seen["again"] = node.look(daemon, "early", "beside", "one", "two")
            node.run("systemctl", "daemon-reload")
            seen["reloaded"] = node.look(daemon, "early", "beside", "one", "two")
            stage("a pod is resized")
            one = node.program("one")
            before = seen["threads of 4"] = exec_threads(one.group)
            node.resize("one", "20")
            eventually(lambda: daemon.says("default/one/main: CPUs"), "it is planned again")
            eventually(lambda: exec_threads(one.group) != before, "its limit has changed")
            seen["resized"] = node.look(daemon, "one")
            seen["threads of 20"] = exec_threads(one.group)
            stage("CPUs become a partition")
            seen |= look_at_partition(node, one)
        node.end_pods()
    kubelet = f"--pod-resources={node.state}/pod-resources/kubelet.sock"
    with node.kubelet(cpuManagerPolicy="static", reservedSystemCPUs=f"'{PARTITION_CPUS}'"):
        stage("a pod gets CPUs of its own")
        with node.daemon(kubelet) as daemon:
            node.start("own")
            seen["static"] = node.look(daemon, "own")
            seen["planned"] = exec_threads(node.program("own").group)
            stage("a pod runs its command by /affinity/run")
            node.start("run", manifest="run.json")
            seen["run"] = node.look(daemon, "run")["run"]
    return seen


def exec_threads(group: Path, *options: str) -> Ended:
    """Run `exec --threads` in a cgroup, with a command that prints its CPUs and threads."""
    told = "echo $AFFINITYD_CPULIST $OMP_NUM_THREADS"
    return affinityd("exec", "--threads", *options, "--", "sh", "-c", told, group=group)


def look_at_partition(node: "Node", pod: "Program") -> Document:
    """Take a partition's CPUs from pods, resize a pod, and return the CPUs inside and outside."""
    beside_all = make_partition()
    node.run("systemctl", "set-property", "kubepods.slice", f"AllowedCPUs={OTHER_CPUS}")
    beside_others = make_partition()
    node.resize("one", "3")
    eventually(lambda: pod.cpuset != "0-31", "the runtime has changed it")
    return {
        "partitions": [beside_all, beside_others],
        "outside": pod.cpuset,
        "inside": [exec_threads(PARTITION, f"--gpus={gpu}") for gpu in GPUS],
    }


def make_partition() -> str:
    """Make a cgroup a partition, or try again; return the state that the kernel reports."""
    PARTITION.mkdir(exist_ok=True)
    (PARTITION / "cpuset.cpus").write_text(PARTITION_CPUS)
    for state in ("member", "root"):
        (PARTITION / "cpuset.cpus.partition").write_text(state)
    return (PARTITION / "cpuset.cpus.partition").read_text().strip()


@dataclass(frozen=True)
class Program:
    """The program of a pod."""

    pid: int

    @property
    def group(self) -> Path:
        path = Path(f"/proc/{self.pid}/cgroup").read_text().strip().removeprefix("0::")
        return Path(f"{GROUPS}{path}")

    @property
    def cpuset(self) -> str:
        return (self.group / "cpuset.cpus").read_text().strip()

    def opens(self, gpu: int) -> str:
        """Open a GPU as a process of the container; return the error, which is ENXIO if allowed."""
        child = os.fork()
        if child == 0:
            try:
                (self.group / "cgroup.procs").write_text("0")
                os.open(f"/proc/{self.pid}/root/dev/nvidia{gpu}", os.O_RDWR)
            except OSError as error:
                os._exit(error.errno or 255)
            os._exit(0)
        return errno.errorcode[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]

    def look(self) -> Document:
        variables = environment_of(self.pid) or {}
        gpu = int(variables["NVIDIA_VISIBLE_DEVICES"])
        return {
            "gpu": gpu,
            "opens": self.opens(gpu),
            "cpus": thread_masks(self.pid)[0],
            "told": {key: text for key, text in variables.items() if key.startswith("AFFINITYD")},
        }


@dataclass(frozen=True)
class Node:
    """Another Debian in the machine, with its own systemd."""

    systemd: int  #: the pid of its systemd

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.systemd}/root")

    @property
    def state(self) -> Path:
        return self.root / "var/lib/kubelet"

    def run(self, *command: str) -> str:
        return output("nsenter", f"--target={self.systemd}", "--mount", "--pid", "--", *command)

    @contextmanager
    def kubelet(self, **settings: str) -> Iterator[None]:
        """Run kubelet, and a device plugin of the GPUs."""
        plugins = self.state / "device-plugins"
        for path in (plugins / "kubelet.sock", self.state / "cpu_manager_state"):
            path.unlink(missing_ok=True)
        lines = [f"{name}: {value}\n" for name, value in settings.items()]
        text = (NODE / "etc/kubelet.yaml").read_text() + "".join(lines)
        (self.root / "etc/kubelet.yaml").write_text(text)
        stage("kubelet starts")
        self.run("systemctl", "start", "kubelet")
        eventually((plugins / "kubelet.sock").is_socket, "kubelet listens to device plugins")
        gpus = [f"{gpu}={GPU_NODES[gpu]}:/dev/nvidia{gpu}:/dev/nvidia{gpu}" for gpu in GPUS]
        module = [sys.executable, "-m", "tests.e2e.kubernetes.kubelet_plugins", "devices"]
        words = [*module, str(plugins), "nvidia.com/gpu", "variable,file", *gpus]
        with subprocess.Popen(words, stdout=sys.stderr) as plugin:
            try:
                eventually(has_gpus, "the API server knows the node's GPUs")
                yield
            finally:
                plugin.terminate()
        self.run("systemctl", "stop", "kubelet")
        api("DELETE", "/api/v1/nodes/vm")  # else the next node's GPUs seem to exist already

    def start(self, name: str, *, beside: str = "", manifest: str = "pod.json") -> None:
        """Start a pod that requests a GPU or, with `beside`, only names this GPU in a variable."""
        pod = json.loads((NODE / manifest).read_text())
        pod["metadata"]["name"] = name
        (container,) = pod["spec"]["containers"]
        container["env"][0]["value"] = name
        if beside:
            del container["resources"]["limits"]["nvidia.com/gpu"]
            container["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": beside})
        api("POST", PODS, pod)

    def resize(self, name: str, cpus: str) -> None:
        amounts = {"requests": {"cpu": cpus}, "limits": {"cpu": cpus}}
        change = {"spec": {"containers": [{"name": "main", "resources": amounts}]}}
        kind = "application/strategic-merge-patch+json"
        api("PATCH", f"{PODS}/{name}/resize", change, kind)

    def end_pods(self) -> None:
        for pod in api("GET", PODS)["items"]:
            api("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        eventually(lambda: not pids("busybox"), "the pods have ended")

    def program(self, name: str) -> Program:
        """Return the program of a pod, once it runs."""
        found: list[Program] = []

        def runs() -> bool:
            found[:] = programs(name)
            return bool(found)

        eventually(runs, f"the pod {name} runs")
        return found[0]

    @contextmanager
    def daemon(self, *arguments: str) -> Iterator[Daemon]:
        socket = f"--nri={self.root}/run/nri/nri.sock"
        daemon = serving(socket, "--nri-namespaces=default", "--scan-interval=off", *arguments)
        eventually(lambda: daemon.says("the runtime knows the plugin"), "it is connected")
        yield daemon
        daemon.stop()

    def look(self, daemon: Daemon, *names: str) -> Document:
        """Return the facts of each pod, and the daemon's output."""
        seen: Document = {name: self.program(name).look() for name in names}
        metrics = daemon.get("/metrics").text
        states = re.findall(r'nri_containers\{.*state="(\w+)"\} ([1-9])', metrics)
        return {**seen, "states": dict(states), "log": daemon.says("container default/")}


def boot_node() -> Node:
    """Start systemd in the release's root, in namespaces of its own, and containerd by it."""
    output("modprobe", "e1000")
    output("ip", "address", "add", "10.0.2.15/24", "dev", "eth0")
    output("ip", "link", "set", "eth0", "up")
    output("ip", "route", "add", "default", "via", "10.0.2.2")
    shutil.copytree(NODE, ROOT, dirs_exist_ok=True)
    write_image(ROOT / "etc/image.tar")
    stage("systemd starts")
    unshare = ["unshare", "--mount", "--pid", "--fork", str(NODE / "boot.sh"), str(ROOT)]
    subprocess.Popen(unshare, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    found: list[Node] = []

    def answers() -> bool:
        found[:] = [Node(pid) for pid in pids("systemd")]
        return bool(found) and (found[0].root / "run/systemd/private").exists()

    eventually(answers, "systemd answers")
    found[0].run("systemctl", "start", "containerd")
    load = ("ctr", "-n", "k8s.io", "images", "import", "--local", "--snapshotter", "native")
    found[0].run(*load, "/etc/image.tar")
    return found[0]


def pids(program: str) -> list[int]:
    """Return the processes of a program, the first one first."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return sorted(pid for pid in numbers if is_program(pid, program))


def is_program(pid: int, program: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{program}\n"
    except OSError:  # the process has ended
        return False


def programs(name: str) -> list[Program]:
    return [
        Program(pid) for pid in pids("busybox") if (environment_of(pid) or {}).get("NAME") == name
    ]


def make_device_file(folder: Path, minor: int) -> None:
    path = folder / f"nvidia{minor}"
    os.mknod(path, stat.S_IFCHR, os.makedev(NVIDIA, minor))
    path.chmod(0o666)


def let_in(node: Node, program: Program) -> None:
    """Let a container's processes use a GPU that its spec lacks, as libnvidia-container does.

    libnvidia-container sets a device filter that allows more; without a filter all is allowed.
    """
    group = str(program.group)
    for filter_ in json.loads(node.run("bpftool", "-j", "cgroup", "show", group)):
        words = (filter_["attach_type"], "id", str(filter_["id"]), "multi")
        node.run("bpftool", "cgroup", "detach", group, *words)


def write_image(archive: Path) -> None:
    layer = packed({"bin/busybox": (ROOT / "usr/bin/busybox").read_bytes()})
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    layers = {"type": "layers", "diff_ids": [digest]}
    about: Document = {"architecture": "amd64", "os": "linux", "rootfs": layers}
    about["config"] = {"Entrypoint": SLEEPS}
    manifest = [{"Config": "config", "RepoTags": [IMAGE], "Layers": ["layer"]}]
    files = {"config": json.dumps(about).encode(), "layer": layer}
    archive.write_bytes(packed({**files, "manifest.json": json.dumps(manifest).encode()}))


def packed(files: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            about.mode = 0o755
            tar.addfile(about, io.BytesIO(data))
    return written.getvalue()


def has_gpus() -> bool:
    try:
        node = api("GET", "/api/v1/nodes/vm")
    except (OSError, AssertionError):  # kubelet has not registered the node
        return False
    allocatable = node["status"].get("allocatable", {})
    return bool(allocatable.get("nvidia.com/gpu") == str(len(GPUS)))


def api(method: str, path: str, document: Any = None, kind: str = "application/json") -> Any:  # noqa: ANN401
    connection = http.client.HTTPConnection(*API, timeout=300)
    connection.request(method, path, json.dumps(document), {"Content-Type": kind})
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status < 300, answer
    return answer
