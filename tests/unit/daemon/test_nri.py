"""The daemon's NRI plugin: whatever happens, its answer is one with which a container starts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.config.settings import Settings
from affinityd.daemon import nri
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.state.plan_service import PlanService
from affinityd.kubernetes import pods
from affinityd.linux.protobuf import field, number, read, text
from affinityd.topology.model import Node
from tests.support.daemons import PATIENCE, eventually
from tests.support.nri import Given, Runtime, created
from tests.support.tiny import NEAR, tiny


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    made = Runtime(tmp_path / "nri.sock")
    yield made
    made.end()


@pytest.fixture
def plugin(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NriPlugin]:
    """Yield a plugin that the runtime has taken in; it does not come back."""
    socket = f"{tmp_path}/nri.sock"
    chosen = frozenset({"training"})
    made = NriPlugin(Settings(nri=socket, nri_namespaces=chosen), PlanService(Node(tiny())))
    made.start()
    registered = runtime.accept()
    assert (text(registered, 1), text(registered, 2)) == ("affinityd", "99")
    (subscribed,) = runtime.ask(("Configure", b""))
    assert number(read(subscribed), 2) == 1 << 3  # CREATE_CONTAINER alone
    yield made
    monkeypatch.setattr(nri, "FIRST_PAUSE", 3600)
    runtime.close()
    eventually(lambda: not made.is_known, "it has lost the runtime")


def test_a_container_is_adjusted(runtime: Runtime, plugin: NriPlugin) -> None:
    given = runtime.create(created())
    assert given.cpus == given.environment["AFFINITYD_CPULIST"] == NEAR
    assert plugin.outcomes == {"adjusted": 1}


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (created("other"), "not_chosen"),
        (created(devices=[]), "no_gpu"),
        (created(devices=["/dev/nvidia77"]), "unknown"),
        (created(env=["AFFINITYD=off"]), "off"),
        (b"\xff\xff", "failed"),
        (b"", "not_chosen"),
    ],
)
def test_another_is_left_as_it_is(
    runtime: Runtime, plugin: NriPlugin, request_: bytes, outcome: str
) -> None:
    assert runtime.create(request_) == Given()
    assert plugin.outcomes == {outcome: 1}


def test_nothing_is_given_before_the_machine_is_read(runtime: Runtime, plugin: NriPlugin) -> None:
    plugin._service.known = None
    assert runtime.create(created()) == Given()
    assert plugin.outcomes == {"unknown": 1}


def test_a_bug_is_one_line_and_an_empty_answer(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(nri, "cpuset_at", lambda _path: 1 / 0)
    for _ in range(3):
        assert runtime.create(created()) == Given()
    assert plugin.outcomes == {"failed": 3}
    assert len([it for it in caplog.records if "not adjusted" in it.message]) == 1


def test_an_answer_that_takes_long_is_an_empty_one_in_time(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    goes_on, before = threading.Event(), set(threading.enumerate())
    monkeypatch.setattr(nri, "cpuset_at", lambda _path: goes_on.wait(PATIENCE) and None)
    for _ in range(2):
        assert runtime.create(created()) == Given()
    assert plugin.outcomes == {"late": 2}
    goes_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    logged = [it.message for it in caplog.records if it.message.startswith(("a cont", "cont"))]
    assert logged == ["a container starts as it is: 0.2 s were too short"] * 2


@pytest.mark.parametrize(
    ("name", "outcome"), [(b"main", "adjusted"), (b"other", "no_gpu"), (None, "unknown")]
)
def test_gpus_that_kubelet_alone_knows_count(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    name: bytes | None,
    outcome: str,
) -> None:
    if name is not None:
        gpu = field(2, field(1, "nvidia.com/gpu") + field(2, "0"))
        pod = field(1, "job") + field(2, "training") + field(3, field(1, name) + gpu)
        monkeypatch.setattr(pods, "list_pods", lambda *_: field(1, pod))
    plugin._kubelet = "/nonexistent"
    given = runtime.create(created(devices=[]))
    assert given.cpus == (NEAR if outcome == "adjusted" else "")
    assert plugin.outcomes == {outcome: 1}


@pytest.mark.parametrize("farewell", [b"", b"\x00\x00\x00\x01\xff\xff\xff\xff"])
def test_it_comes_back_when_the_runtime_does(
    runtime: Runtime,
    plugin: NriPlugin,
    farewell: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(nri, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(nri, "LONGEST_PAUSE", 0.01)
    runtime.connection.sendall(farewell)
    runtime.close()
    eventually(lambda: not plugin.is_known, "it knows")
    runtime.accept()
    assert runtime.create(created()).cpus == NEAR
    lost, *_, known = caplog.messages[:-1]
    assert "check that the runtime has NRI on at /" in lost
    assert known.endswith("the runtime knows the plugin; namespaces: training")
