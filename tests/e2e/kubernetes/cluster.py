"""A real Kubernetes of one node, made by the rig beside the checkout."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd import __version__
from affinityd.cpuset import format_list
from affinityd.linux.cgroup import mask_of
from affinityd.linux.files import environment_of
from tests.e2e.chart.tools import helm
from tests.e2e.containers import images
from tests.e2e.containers.podman import podman
from tests.support.daemons import PATIENCE, eventually
from tests.support.paths import REPOSITORY
from tests.support.tiny import Ended, ran

RIGS = Path(os.environ.get("RIGS", REPOSITORY.parent / "shared/rigs"))
CHROOT = Path(os.environ.get("RIG_CHROOT", "/var/cache/rigs/forky"))
KUBELET = CHROOT / "var/lib/kubelet"
POD_RESOURCES = KUBELET / "pod-resources/kubelet.sock"
#: The packages of the rig's chroot, as the rig's README lists them.
PACKAGES = (
    *("containerd", "runc", "containernetworking-plugins", "etcd-server", "kubernetes-client"),
    *("iptables", "conntrack", "iproute2", "mount"),
)
IMAGE = "localhost/busybox:tests"
SLEEPS = ("/bin/busybox", "sleep", "100000")  #: the command of an idle container
#: An idle container, and amounts for which kubelet may give a container a CPU of its own.
SLEEPER = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": SLEEPS}
ONE_CPU = {"cpu": "1", "memory": "64Mi"}
SOCKET = "run/affinityd/affinityd.sock"
CPUSETS = Path("/sys/fs/cgroup/cpuset")
NVIDIA = 195  #: the major of /dev/nvidia*, kernel Documentation/admin-guide/devices.txt


NODE = "rig0"
HELM_FOLDERS = ("CACHE", "CONFIG", "DATA")  #: the rig's folders, not the user's
#: The names that the pages, the examples and the chart's values have for our image.
AFFINITYD = tuple(f"{place}/affinityd:{__version__}" for place in ("localhost", "registry.example"))


@dataclass(frozen=True)
class Process:
    """A process in a container; each property reads its current state."""

    pid: int

    @property
    def environment(self) -> Mapping[str, str]:
        return environment_of(self.pid) or {}

    @property
    def told(self) -> Mapping[str, str]:
        variables = self.environment.items()
        return {name: value for name, value in variables if name.startswith("AFFINITYD")}

    @property
    def cpus(self) -> str:
        return format_list(mask_of(self.pid) or ())

    @property
    def cpuset(self) -> str:
        """The cpuset that kubelet gave the container of the process."""
        lines = Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()
        (folder,) = (line.split(":")[2] for line in lines if ":cpuset:" in line)
        return Path(f"{CPUSETS}{folder}/cpuset.cpus").read_text().strip()

    @property
    def gpu(self) -> int:
        return int(self.environment["NVIDIA_VISIBLE_DEVICES"].removeprefix("GPU-")[0])

    @property
    def has_socket(self) -> bool:
        return Path(f"/proc/{self.pid}/root/{SOCKET}").is_socket()


@dataclass(frozen=True)
class Cluster:
    """A running cluster; `environment` has the variables of the rig's commands."""

    environment: Mapping[str, str]
    folder: Path

    @property
    def _namespaces(self) -> Path:
        return Path("/proc", f"{self.pid('ns')}")

    def pid(self, name: str) -> int:
        return int(self._pid_file(name).read_text())

    def _pid_file(self, name: str) -> Path:
        return Path(self.environment["RIG_DIR"], "pid", name)

    def stop(self, name: str) -> str:
        process = Path("/proc", f"{self.pid(name)}")
        command = shlex.join((process / "cmdline").read_text().rstrip("\0").split("\0"))
        os.kill(self.pid(name), signal.SIGTERM)
        eventually(lambda: not process.exists(), f"{name} has ended")
        return command

    def start(self, name: str, command: str) -> None:
        log = Path(self.environment["RIG_DIR"], "log", f"{name}.log")
        inside = f"setsid nsenter -m -n -t {self.pid('ns')} chroot {CHROOT} {command}"
        self.run(f"{inside} >>{log} 2>&1 </dev/null & echo $! >{self._pid_file(name)}")

    @property
    def root(self) -> Path:
        """The node's root folder, to which a hostPath is relative."""
        return self._namespaces / "root" / CHROOT.relative_to("/")

    @property
    def network(self) -> list[str]:
        """The prefix of a command in the node's network, which has the pods and the API server."""
        return ["nsenter", f"--net={self._namespaces}/ns/net"]

    @property
    def mounts(self) -> list[str]:
        return ["nsenter", f"--mount={self._namespaces}/ns/mnt"]

    def shell(self, script: str, text: str | None = None) -> Ended:
        """Run a script as an administrator with kubectl and helm, in a checkout."""
        programs = self.folder / "bin"
        env = {
            **self.environment,
            "PATH": f"{programs}:{self.environment['PATH']}",
            "KUBECONFIG": os.fspath(programs / "kubeconfig"),
            **{f"HELM_{name}_HOME": os.fspath(self.folder / name) for name in HELM_FOLDERS},
        }
        options = {"cwd": REPOSITORY, "env": env, "input": text, "timeout": 4 * PATIENCE}
        return ran(*self.network, "sh", "-c", script, **options)

    def run(self, script: str, text: str | None = None) -> str:
        ended = self.shell(script, text)
        assert ended.status == 0, f"{script}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def load(self, image: str, *names: str) -> None:
        """Load an image of tests/e2e/containers into the node, by its own name and by others."""
        archive = self.folder / "archive.tar"
        podman("save", "--quiet", f"--output={archive}", image)
        self.rig("load", os.fspath(archive))
        archive.unlink()
        for name in names:
            self.rig("run", "/usr/bin/ctr", "-n", "k8s.io", "images", "tag", "--force", image, name)

    def load_affinityd(self) -> None:
        self.load(images.affinityd(), *AFFINITYD)

    def rig(self, *words: str, text: str | None = None) -> str:
        done = ran(RIGS / "k8s/k8s-rig.sh", *words, env=self.environment, input=text)
        assert done.status == 0, done.stdout + done.stderr
        return done.stdout

    def get(self, *words: str) -> Any:  # noqa: ANN401 - a document
        return json.loads(self.rig("kubectl", "get", *words, "-o", "json"))

    def apply(self, document: Mapping[str, Any]) -> None:
        self.rig("kubectl", "apply", "-f", "-", text=json.dumps(document))

    def claim_device(self, driver: str, pool: str, device: str, namespace: str) -> None:
        """Create DRA objects: a class, the node's only device, and a claim `one` for the device."""
        slice_ = {"driver": driver, "nodeName": NODE, "devices": [{"name": device}]}
        request = {"name": "gpu", "exactly": {"deviceClassName": driver}}
        specs = {
            ("DeviceClass", driver): {},
            ("ResourceSlice", pool): {
                **slice_,
                "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            },
            ("ResourceClaim", "one"): {"devices": {"requests": [request]}},
        }
        for (kind, name), spec in specs.items():
            metadata = {"name": name}
            if kind == "ResourceClaim":
                metadata["namespace"] = namespace
            about = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata}
            self.apply({**about, "spec": spec})

    def start_pod(self, name: str, spec: Mapping[str, Any], **about: Any) -> list[int]:  # noqa: ANN401
        """Create a pod; return the processes of its containers, once they run."""
        spec = {"terminationGracePeriodSeconds": 0, **spec}
        metadata = {"name": name, "namespace": "default", **about}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pids: list[int] = []

        def runs() -> bool:
            pod = self.get("pod", "-n", metadata["namespace"], name)
            assert pod["status"]["phase"] != "Failed", pod["status"]
            pids[:] = self.pids(pod["metadata"]["uid"])
            return bool(pod["status"]["phase"] == "Running" and pids)

        eventually(runs, f"the pod {name} runs")
        return pids

    def pids(self, uid: str) -> list[int]:
        try:
            files = CPUSETS.glob(f"**/pod{uid}/*/cgroup.procs")
            named = [int(pid) for file in files for pid in file.read_text().split()]
            return [pid for pid in named if "pause" not in Path(f"/proc/{pid}/comm").read_text()]
        except (FileNotFoundError, ProcessLookupError):  # a cgroup, or a process, is gone meanwhile
            return []


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Cluster]:
    """Run a cluster; `settings` are variables of the rig, such as RIG_CPU."""
    CHROOT.parent.mkdir(parents=True, exist_ok=True)
    with CHROOT.with_suffix(".lock").open("w") as lock:  # a chroot has room for one cluster
        fcntl.flock(lock, fcntl.LOCK_EX)
        make = [os.fspath(RIGS / "release.sh"), "make", "forky", *PACKAGES]
        subprocess.run(make, check=True, capture_output=True)
        path = f"/usr/local/bin:{os.environ['PATH']}"
        ours = {"RIG_DIR": os.fspath(folder / "rig"), "PATH": path, **settings}
        cluster = Cluster({**os.environ, **ours}, folder)
        try:
            _mend_exec()
            cluster.rig("up")
            _give_programs(folder / "bin")
            cluster.load(images.client("busybox"), IMAGE)
            yield cluster
        finally:
            cluster.rig("down")


def _mend_exec() -> None:
    """Give containerd a runc in PATH whose containers `kubectl exec` can enter."""
    program = CHROOT / "usr/local/bin/runc"
    shutil.copy(Path(__file__).with_name("runc.sh"), program)
    program.chmod(0o755)
    (CHROOT / "rig").mkdir(exist_ok=True)
    (CHROOT / "rig/root").write_text(os.fspath(CHROOT))


def _give_programs(folder: Path) -> None:
    folder.mkdir()
    (folder / "helm").symlink_to(helm())
    (folder / "kubectl").symlink_to(CHROOT / "usr/bin/kubectl")
    config = (CHROOT / "rig/kubeconfig").read_text()
    (folder / "kubeconfig").write_text(config.replace("/rig/", f"{CHROOT}/rig/"))
    (folder / "kubeconfig").chmod(0o600)


@contextmanager
def plugin(cluster: Cluster, devices: Mapping[str, int], first: int = 0) -> Iterator[None]:
    """Announce GPUs (id → NUMA node) to kubelet; `first` is the device minor of the first GPU."""
    minors = range(first, first + len(devices))
    words = [
        f"{it}={node}:/rig/dev/nvidia{minor}:/dev/nvidia{minor}"
        for minor, (it, node) in zip(minors, devices.items(), strict=True)
    ]
    files = CHROOT / "rig/dev"
    files.mkdir(exist_ok=True)
    for minor in minors:
        with suppress(FileExistsError):
            os.mknod(files / f"nvidia{minor}", stat.S_IFCHR | 0o666, os.makedev(NVIDIA, minor))
            (files / f"nvidia{minor}").chmod(0o666)
    with device_plugin(cluster, "nvidia.com/gpu", "variable,file", *words):
        yield


@contextmanager
def device_plugin(cluster: Cluster, resource: str, ways: str, *gpus: str) -> Iterator[None]:
    """Run a device plugin, kubelet_plugins.py; the block begins when the node has the GPUs."""
    with kubelet_plugin("devices", KUBELET / "device-plugins", resource, ways, *gpus):
        field = f"jsonpath='{{.status.allocatable.{resource.replace('.', chr(92) + '.')}}}'"
        wait = f"kubectl wait node {NODE} --for={field}={len(gpus)}"
        cluster.run(f"{wait} --timeout={PATIENCE:.0f}s")
        yield


@contextmanager
def kubelet_plugin(*words: str | Path) -> Iterator[None]:
    """Run kubelet_plugins.py; the block begins when kubelet has registered it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.kubernetes.kubelet_plugins", *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.terminate()
