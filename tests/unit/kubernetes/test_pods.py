"""Kubelet is asked once a scan; what it said last counts while it does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.facts.job import Job
from affinityd.audit.judge import Judge
from affinityd.audit.model import AuditedProcess, NamedPods
from affinityd.kubernetes import podresources
from affinityd.kubernetes.pods import KubeletPods
from affinityd.linux.protobuf import field
from tests.support.audit_facts import KUBERNETES_POD, process
from tests.support.machines.facts import machine

A100 = machine("dgx-a100")
NODE = replace(A100, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in A100.gpus))
IN_POD = Judge(NODE).judge(process("0-3", gpu=("nvidia", 0), membership=KUBERNETES_POD))
LATER_POD = replace(KUBERNETES_POD, job=Job("kubernetes", "5" * 32))
LATER = Judge(NODE).judge(process("0-3", pid=5, gpu=("nvidia", 0), membership=LATER_POD))
HANGS = TimeoutError("timed out")


def pod(name: str) -> bytes:
    devices = field(2, field(1, "nvidia.com/gpu") + field(2, "GPU-0"))
    return field(1, field(1, name) + field(2, "team") + field(3, field(1, "main") + devices))


class Kubelet:
    """What kubelet answers next, and how often it was asked."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = b""
        self.asked = 0
        self.gives: bool | None = True
        self.settings = 0

    def list_pods(self, _socket: str, _timeout: float) -> bytes:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def gives_cpus(self, _socket: str, _timeout: float) -> bool | None:
        self.settings += 1
        return self.gives


@pytest.fixture
def kubelet(monkeypatch: pytest.MonkeyPatch) -> Kubelet:
    kubelet = Kubelet()
    for name in ("list_pods", "gives_cpus"):
        monkeypatch.setattr(podresources, name, getattr(kubelet, name))
    return kubelet


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with listening(tmp_path / "kubelet.sock"):
        yield tmp_path / "kubelet.sock"


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}")
        server.listen()
        yield


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def names(named: NamedPods) -> list[str | None]:
    return [None if it.facts.given is None else it.facts.given.pod for it in named.processes]


def test_the_last_answer_counts_while_kubelet_does_not_answer(kubelet: Kubelet, path: Path) -> None:
    pods = KubeletPods(f"{path}", f"{path.parent}")
    kubelet.answer = HANGS
    none = pods.name(NODE, [IN_POD])
    assert (names(none), len(none.notices), kubelet.asked) == ([None], 1, 1)
    kubelet.answer = pod("train-0")
    found = pods.name(NODE, [IN_POD])
    assert (names(found), found.notices) == (["train-0"], ())
    for kubelet.answer in (HANGS, b"\xff", ConnectionRefusedError("no")):
        again = pods.name(NODE, [IN_POD])
        assert (names(again), len(again.notices)) == (["train-0"], 1)
        assert str(path) in again.notices[0]
        # A pod that began since may have its GPU.
        assert names(pods.name(NODE, [LATER])) == [None]
        assert names(pods.name(NODE, [LATER, IN_POD])) == [None, "train-0"]
    kubelet.answer = pod("train-1")
    assert names(pods.name(NODE, [IN_POD])) == ["train-1"]


def test_its_settings_are_read_once_until_it_makes_its_socket_again(
    kubelet: Kubelet, path: Path, stack: ExitStack
) -> None:
    pods = KubeletPods(f"{path}", f"{path.parent}")
    for gives, policy in ((True, "static"), (False, "none"), (None, None)):
        kubelet.gives, kubelet.settings = gives, 0
        for _ in range(2):
            known = pods.name(NODE, [IN_POD]).kubelet
            assert known is not None
            assert (known.cpu_policy, known.topology_policy) == (policy, None)
        assert kubelet.settings == 1
        path.rename(path.with_suffix(f".{policy}"))  # it keeps its inode
        stack.enter_context(listening(path))


@pytest.mark.parametrize(
    "found",
    [[], [Judge(NODE).judge(process("0-3", gpu=("nvidia", 0)))], [replace(IN_POD, is_daemon=True)]],
)
def test_it_is_not_asked_where_no_process_is_in_a_pod(
    kubelet: Kubelet, path: Path, found: list[AuditedProcess]
) -> None:
    assert KubeletPods(f"{path}").name(NODE, found) == NamedPods(found)
    assert kubelet.asked == 0
