"""`run` of `affinityd init`: its requests for a container, and the CPUs that a container keeps.

tests/unit/request/test_devices.py checks the daemon's answers to these requests.
"""

import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from affinityd.cpuset import parse_list
from affinityd.json_codec import dumps
from affinityd.request.environment import READ
from tests.support.daemons import running
from tests.support.machines.sysfs_tree import nvml_report, write_tree
from tests.support.pods import Pod
from tests.support.servers import http, serving
from tests.unit.request.test_devices import EIGHT

Asked = Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("node")
    tree = write_tree(EIGHT, folder / "machine")
    (tree / "nvml.json").write_text(dumps(nvml_report(EIGHT)))
    with running(folder, "--root", str(tree)) as daemon:
        yield Pod(folder / "pod", daemon.socket)


class Listener:
    """A server in a daemon's place that refuses everything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._targets: list[str] = []

    def behave(self, connection: socket.socket, _over: object) -> None:
        self._targets.append(connection.recv(65536).split()[1].decode())
        connection.sendall(http("422 No", b"Malformed request: no"))

    def asked(self, pod: Pod, **said: str) -> Asked | None:
        """Return `run`'s request, except mask and format; None if it sends none."""
        self._targets.clear()
        told = pod.run(cpus=EIGHT.online, AFFINITYD_SOCKET=str(self.path), **said)
        assert told.status == 0
        if not self._targets:
            assert "no device file of a GPU is here" in told.lines[0]
            return None
        (target,) = self._targets
        pairs = parse_qsl(target.partition("?")[2], keep_blank_values=True)
        assert pairs[:2] == [("format", "shell"), ("cpuset", "0-255")]
        return [pair for pair in pairs[2:] if pair != ("env", "AFFINITYD_JOB_CPUS=")]


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    found = Listener(tmp_path_factory.mktemp("listener") / "s")
    with serving(found.path, found.behave):
        yield found


NVIDIA, CUDA = "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
ODD = "GPU-ff,1;0 $x &"


@pytest.mark.parametrize(
    ("files", "said", "asked"),
    [
        (["nvidia6", "nvidia3"], {}, [("granted", "minor:3,minor:6")]),
        (["nvidia4"], {NVIDIA: ""}, [("granted", "minor:4")]),
        (["nvidia4"], {NVIDIA: "/var/run/nvidia-container-devices"}, [("granted", "minor:4")]),
        (
            ["nvidia5"],
            {NVIDIA: "5:1", CUDA: " 0"},
            [("granted", "minor:5"), ("env", f"{NVIDIA}=5:1"), ("env", f"{CUDA}= 0")],
        ),
        ([], {NVIDIA: ODD}, [("granted", ODD), ("env", f"{NVIDIA}={ODD}")]),
        ([], {NVIDIA: "all"}, None),
        ([], {NVIDIA: "void"}, None),
        (["dri/renderD129", "dri/renderD134"], {NVIDIA: "0"}, [("granted", "drm:129,drm:134")]),
        (["davinci3", "davinci4"], {NVIDIA: "0"}, [("granted", "davinci:3,davinci:4")]),
        (["accel/accel2", "accel/accel5"], {NVIDIA: "0"}, [("granted", "accel:2,accel:5")]),
    ],
)
def test_a_container_s_gpus_are_its_device_files_and_its_runtime_s_list_is_sent_unchanged(
    pod: Pod,
    listener: Listener,
    files: Sequence[str],
    said: Mapping[str, str],
    asked: Asked | None,
) -> None:
    pod.has(*files)
    assert listener.asked(pod, **said) == asked


def test_every_variable_that_affects_a_plan_is_passed_on(pod: Pod, listener: Listener) -> None:
    pod.has("nvidia5")
    others = (  # of Slurm, and of commands
        *("SLURM", "AFFINITYD_SLICE", "AFFINITYD_MPS_DEVICES"),
        *("AFFINITYD_CHOOSE_GPU", "AFFINITYD_GPU_ORDER", "AFFINITYD_GPUS"),
    )
    of_pods = {name for name in READ if not name.startswith(others)}
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(pod.folder)}  # of a daemon that is there
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(f"{pod.folder}/control")
    asked = listener.asked(pod, **{**dict.fromkeys(of_pods, "1"), **pipe})
    expected = {("env", f"{name}={pipe.get(name, 1)}") for name in of_pods}
    assert {*(asked or ())} == {("granted", "minor:5"), *expected}


V2, QUOTA, PERIOD = "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"
WEIGHT, SHARES = "cpu.weight", "cpu/cpu.shares"
JOB, CHOSEN = "AFFINITYD_JOB_CPUS", "AFFINITYD_CPUS"
NEAR, EIGHT_CPUS = "20-23", "20-23,32-35"  #: the CPUs near GPU 2; these and four other CPUs
TWO_RANKS = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("said", "limits", "cpus"),
    [
        ({}, {}, NEAR),
        ({JOB: "8"}, {}, EIGHT_CPUS),
        ({JOB: "4"}, {}, NEAR),
        ({JOB: "0"}, {V2: "800000 100000"}, NEAR),
        ({}, {V2: "800000 100000"}, EIGHT_CPUS),
        ({}, {V2: "450000 100000"}, "20-23,32"),
        ({}, {V2: "max 100000"}, NEAR),
        ({}, {QUOTA: "450000", PERIOD: "100000"}, "20-23,32"),
        ({}, {QUOTA: "-1", PERIOD: "100000"}, NEAR),
        ({}, {QUOTA: "-1", SHARES: "8192"}, EIGHT_CPUS),  # exclusive CPUs have no limit
        ({}, {QUOTA: "-1", SHARES: "8191"}, NEAR),
        ({}, {V2: "max 100000", WEIGHT: "313"}, EIGHT_CPUS),
        ({}, {V2: "max 100000", WEIGHT: "312"}, NEAR),
        ({}, {V2: "max 100000", WEIGHT: "100"}, NEAR),
        ({CHOSEN: "none"}, {V2: "800000 100000"}, NEAR),
        ({CHOSEN: "06"}, {V2: "800000 100000"}, "20-23,32-33"),
        ({JOB: "8", **TWO_RANKS}, {}, EIGHT_CPUS),
        ({JOB: "4", **TWO_RANKS}, {}, NEAR),
    ],
)
def test_a_container_keeps_the_number_of_cpus_that_it_requested(
    pod: Pod, said: Mapping[str, str], limits: Mapping[str, str], cpus: str
) -> None:
    pod.has("nvidia5")
    cgroups = pod.folder / "sys/fs/cgroup"
    shutil.rmtree(cgroups, ignore_errors=True)
    (cgroups / "cpu").mkdir(parents=True)
    for name, text in limits.items():
        (cgroups / name).write_text(f"{text}\n")
    asked = pod.run(cpus=parse_list(EIGHT_CPUS), AFFINITYD_MODE="node", **said)
    shutil.rmtree(cgroups)
    locality = "local" if cpus == NEAR else "mixed"
    assert (asked.cpus, asked.environment["AFFINITYD_LOCALITY"]) == (parse_list(cpus), locality)


@pytest.mark.parametrize(
    ("site", "job", "cpus"),
    [("6", {}, "0-1,48-51"), ("6", {CHOSEN: "none"}, "48-51"), ("none", {}, "48-51")],
)
def test_the_number_of_cpus_given_to_init_counts_unless_the_program_has_another(
    pod: Pod, tmp_path: Path, site: str, job: Mapping[str, str], cpus: str
) -> None:
    own = Pod(tmp_path / "pod", pod.socket, {CHOSEN: site})
    assert (own.to / "plan.json").exists()
    own.has("nvidia7", "nvidia6")
    told = own.run(cpus=parse_list("48-51,0-3"), **{JOB: "6", **job})
    assert told.cpus == parse_list(cpus), told.lines
