"""The daemon's NRI plugin: whatever happens, its answer is one with which a container starts."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.config.settings import Settings
from affinityd.cpuset import parse_list
from affinityd.daemon import nri
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.kubernetes import pods
from affinityd.linux.protobuf import field, number, read, text
from affinityd.topology.model import Node
from tests.support.daemons import PATIENCE, eventually
from tests.support.nri import Given, Runtime, created, resized, synchronized, updated
from tests.support.tiny import BOTH, CPUS, FAR, NEAR, tiny

read_again: list[int] = []  #: for how many GPUs the machine was to be read


def outcomes(plugin: NriPlugin) -> dict[str, int]:
    return {outcome: number for (outcome, _), number in plugin.outcomes.items()}


def states(plugin: NriPlugin) -> dict[str, str]:
    return {container: state for container, (state, _) in plugin.states.items()}


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
    # Of the pod: its cgroup is none of this machine's.
    monkeypatch.setattr(nri, "cpuset_at", lambda *_: frozenset(CPUS))
    settings = Settings(nri=socket, nri_namespaces=chosen)
    made = NriPlugin(settings, KnownNode(Node(tiny())), lambda: read_again.append(1))
    made.start()
    registered = runtime.accept()
    assert (text(registered, 1), text(registered, 2)) == ("affinityd", "99")
    version = field(2, "containerd") + field(3, "v2.1.4")
    (subscribed,) = runtime.ask(("Configure", version))
    assert number(read(subscribed), 2) == 1 << 3 | 1 << 7 | 1 << 10  # create, update, remove
    read_again.clear()
    yield made
    monkeypatch.setattr(nri, "FIRST_PAUSE", 3600)
    runtime.close()
    eventually(lambda: not made.is_known, "it has lost the runtime")


def test_the_metrics_name_the_runtime_and_count_by_outcome_and_locality(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    runtime.create(created(number=1))
    runtime.create(created(number=2, labels={"affinityd": "observe"}))
    runtime.create(created(number=3, devices=["/dev/nvidia77"]))
    samples = {
        (sample.name.removeprefix("affinityd_nri_"), *sample.labels.values()): sample.value
        for metric in plugin.metrics()
        for sample in metric.samples
        if sample.value
    }
    assert samples == {
        ("info", "containerd v2.1.4", "training"): 1,
        ("connected",): 1,
        ("requests_total", "pinned", "local"): 1,
        ("requests_total", "observed", "unpinned"): 1,
        ("requests_total", "unknown", ""): 1,
        ("containers", "pinned", "local"): 1,
        ("containers", "observed", "unpinned"): 1,
        ("containers", "missed", ""): 1,
    }


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (created("other"), "not_chosen"),
        (created(devices=[]), "no_gpu"),
        (created(devices=["/dev/nvidia77"]), "unknown"),
        (created(env=["AFFINITYD=off"]), "off"),
        (created(labels={"affinityd": "enabled"}), "unknown"),
        (created(labels={"affinityd": "enabled"}, devices=[]), "not_chosen"),
        (b"\xff\xff", "failed"),
        (b"", "not_chosen"),
    ],
)
def test_another_is_left_as_it_is(
    runtime: Runtime, plugin: NriPlugin, request_: bytes, outcome: str
) -> None:
    assert runtime.create(request_) == Given()
    assert outcomes(plugin) == {outcome: 1}


def test_nothing_is_given_before_the_machine_is_read(runtime: Runtime, plugin: NriPlugin) -> None:
    plugin._service.known = None
    assert runtime.create(created()) == Given()
    assert outcomes(plugin) == {"unknown": 1}


def test_a_bug_is_one_line_and_an_empty_answer(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(nri, "cpuset_at", lambda _path: 1 / 0)
    for _ in range(3):
        assert runtime.create(created()) == Given()
    assert outcomes(plugin) == {"failed": 3}
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
    assert outcomes(plugin) == {"late": 2}
    goes_on.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    logged = [it.message for it in caplog.records if it.message.startswith(("a cont", "cont"))]
    assert logged == ["a container starts as it is: 0.4 s were too short"] * 2


@pytest.mark.parametrize(
    ("name", "outcome"), [(b"main", "pinned"), (b"other", "no_gpu"), (None, "unknown")]
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
        monkeypatch.setattr(pods, "allocatable_cpus", lambda *_: frozenset())
    plugin._kubelet = "/nonexistent"
    given = runtime.create(created(devices=[]))
    assert given.cpus == (NEAR if outcome == "pinned" else "")
    assert outcomes(plugin) == {outcome: 1}


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


def test_a_container_that_started_without_the_plugin_gets_its_cpus_while_it_runs(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    ours = ["AFFINITYD_CPULIST=" + BOTH]
    first = synchronized(created(number=1), created(number=2, devices=[]), more=True)
    last = synchronized(created(number=3, cpus=BOTH, env=ours), created("other", number=4))
    answers = runtime.ask(("Synchronize", first), ("Synchronize", last))
    assert number(read(answers[0]), 2) == 1, "it waits for more"
    assert updated(answers[1]) == {"container-1": NEAR}
    assert states(plugin) == {"container-1": "pinned", "container-3": "pinned"}


def test_a_running_container_that_cannot_be_placed_is_logged_and_counted_as_missed(
    runtime: Runtime, plugin: NriPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    lost = created(number=1, devices=["/dev/nvidia77"])
    (answer,) = runtime.ask(("Synchronize", synchronized(lost)))
    assert updated(answer) == {}
    assert states(plugin) == {"container-1": "missed"}
    assert "container training/job/main is not adjusted: " in caplog.text


def test_a_cpuset_that_kubelet_set_bounds_the_other_containers(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    """Without kubelet's word it is not known which CPUs are another container's own."""
    of_kubelet = created(number=2, cpus=FAR)
    (answer,) = runtime.ask(("Synchronize", synchronized(created(number=1), of_kubelet)))
    assert updated(answer) == {}
    assert states(plugin) == {"container-1": "kept", "container-2": "kept"}
    given = runtime.create(created(number=3))
    assert (given.cpus, given.environment["AFFINITYD_NODES"]) == ("", "0-1")
    event = field(1, 11) + field(3, field(1, "container-2"))
    runtime.ask(("StateChange", event))
    assert runtime.create(created(number=4)).cpus == NEAR
    assert "container-2" not in plugin.states


@pytest.mark.parametrize(
    ("kubelet", "cpus"),
    [
        ((BOTH, ""), NEAR),
        ((BOTH, NEAR), FAR),
        ((BOTH, BOTH), ""),
        ((FAR, ""), FAR),
        (("", ""), NEAR),
    ],
)
def test_no_reserved_cpu_nor_another_container_s_own_is_given(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    kubelet: tuple[str, str],
    cpus: str,
) -> None:
    allocatable, exclusive = kubelet
    ids = b"".join(field(3, cpu) for cpu in parse_list(exclusive))
    pod = field(1, "guaranteed") + field(2, "other") + field(3, field(1, "main") + ids)
    monkeypatch.setattr(pods, "list_pods", lambda *_: field(1, pod))
    monkeypatch.setattr(pods, "allocatable_cpus", lambda *_: parse_list(allocatable))
    plugin._kubelet = "/nonexistent"
    given = runtime.create(created())
    assert given.cpus == cpus
    assert outcomes(plugin) == {"pinned" if cpus else "kept": 1}


def test_a_resized_container_has_never_fewer_cpus_than_its_limit(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    one = created(shares=1024)
    assert runtime.create(one).cpus == NEAR
    (answer,) = runtime.ask(("UpdateContainer", resized(one, 2)))
    assert updated(answer) == {"container-1": BOTH}
    (again,) = runtime.ask(("UpdateContainer", resized(one, 2)))
    assert updated(again) == {}
    (memory,) = runtime.ask(("UpdateContainer", one + field(3, b"")))
    assert updated(memory) == {"container-1": NEAR}, "its request is that of its creation"
    kubelets = one + field(3, field(2, field(6, FAR)))
    (other,) = runtime.ask(("UpdateContainer", kubelets))
    assert updated(other) == {}
    (later,) = runtime.ask(("UpdateContainer", resized(one, 2)))
    assert updated(later) == {}, "its CPUs are kubelet's choice from now on"
    assert states(plugin) == {"container-1": "kept"}
    (stranger,) = runtime.ask(("UpdateContainer", resized(created(number=9), 2)))
    assert updated(stranger) == {}


def test_a_gpu_that_is_not_there_has_the_machine_read_again(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    assert plugin.is_known
    runtime.create(created(devices=["/dev/nvidia77"]))
    assert read_again == [1]
