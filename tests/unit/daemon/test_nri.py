"""The daemon's NRI plugin: whatever happens, its answer lets a container start."""

import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from affinityd.config.settings import Settings
from affinityd.daemon import nri
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.kubernetes import pods
from affinityd.kubernetes.nri import messages
from affinityd.linux.protobuf import field, number, read, text
from affinityd.topology.model import Node
from tests.support.daemons import eventually
from tests.support.nri import Given, Runtime, created, resized, synchronized, updated
from tests.support.tiny import BOTH, CPUS, FAR, NEAR, tiny

PRIVILEGED = ["/dev/mem", "/dev/nvidia0", "/dev/nvidia1"]
CHANGED = {"container-1": NEAR}
HOUR = 3600.0  #: a pause longer than a test, in place of one second
PLACES = {"cpus": frozenset(CPUS), "mems": frozenset({0, 1})}
read_again: list[int] = []  #: has a 1 for each request to read the machine again


def happened(kind: int, container: str = "container-1") -> bytes:
    """Return a StateChangeEvent."""
    return field(1, kind) + field(3, field(1, container))


def try_again(runtime: Runtime, plugin: NriPlugin) -> None:
    for known in plugin._containers.values():
        known.next = 0.0
    runtime.ask(("StateChange", b""))


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
    """Yield a plugin that the runtime has accepted; it does not reconnect."""
    socket = f"{tmp_path}/nri.sock"
    chosen: dict[str, dict[str, str]] = {"training": {}}
    # The CPUs of the pod, whose cgroup does not exist on this machine.
    monkeypatch.setattr(nri, "cpuset_at", lambda *_, kind="cpus": PLACES[kind])
    settings = Settings(nri=socket, nri_namespaces=chosen)
    made = NriPlugin(settings, KnownNode(Node(tiny())), lambda: read_again.append(1))
    monkeypatch.setattr(nri, "FIRST_PAUSE", HOUR)
    monkeypatch.setattr(nri, "LONGEST_PAUSE", 30 * HOUR)
    made.start()
    registered = runtime.accept()
    assert (text(registered, 1), text(registered, 2)) == ("affinityd", "99")
    version = field(2, "containerd") + field(3, "v2.1.4")
    (subscribed,) = runtime.ask(("Configure", version))
    events = 1 << 3 | 1 << 4 | 1 << 7 | 1 << 9 | 1 << 10
    assert number(read(subscribed), 2) == events  # create, created, update, stop, remove
    read_again.clear()
    yield made
    monkeypatch.setattr(nri, "FIRST_PAUSE", HOUR)
    runtime.close()
    eventually(lambda: not made.is_known, "it has lost the runtime")


def test_the_metrics_count_by_outcome_and_locality(runtime: Runtime, plugin: NriPlugin) -> None:
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
        (created(labels={"affinityd": "enabled"}), "unplaced"),
        (created(labels={"affinityd": "enabled"}, devices=[]), "no_gpu"),
        (b"\xff\xff", "failed"),
        (b"", "no_gpu"),
    ],
)
def test_a_container_that_is_not_chosen_is_left_as_it_is(
    runtime: Runtime, plugin: NriPlugin, request_: bytes, outcome: str
) -> None:
    assert runtime.create(request_) == Given()
    assert outcomes(plugin) == {outcome: 1}


def test_no_container_is_adjusted_before_the_machine_is_read(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    plugin._service.known = None
    assert runtime.create(created()) == Given()
    assert outcomes(plugin) == {"unknown": 1}


def test_a_bug_is_logged_as_one_line_and_answered_with_nothing(
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


def of_kubelet(container: bytes) -> bytes:
    """Return kubelet's answer: it gave this container of the training job a GPU."""
    gpu = field(2, field(1, "nvidia.com/gpu") + field(2, "0"))
    return field(1, field(1, "job") + field(2, "training") + field(3, field(1, container) + gpu))


@pytest.mark.parametrize(("name", "outcome"), [(b"main", "pinned"), (b"other", "no_gpu")])
def test_a_privileged_container_has_the_gpus_that_kubelet_gave_it(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    name: bytes,
    outcome: str,
) -> None:
    monkeypatch.setattr(pods, "list_pods", lambda *_: of_kubelet(name))
    plugin._kubelet = "/nonexistent"
    given = runtime.create(created(devices=PRIVILEGED))
    assert given.cpus == (NEAR if outcome == "pinned" else "")
    assert outcomes(plugin) == {outcome: 1}


def test_a_container_keeps_the_exclusive_cpus_that_kubelet_gave_it(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    plugin._kubelet = "/nonexistent"
    given = runtime.create(created(cpus=FAR))
    assert (given.cpus, given.environment["AFFINITYD_NODES"]) == ("", "1")
    assert states(plugin) == {"container-1": "kept"}


def test_a_silent_kubelet_is_asked_once_and_its_containers_are_tried_again(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    threads = threading.active_count()

    def fails(path: str, _timeout: float) -> bytes:
        asked.append(path)
        assert threading.active_count() == threads
        raise TimeoutError("timed out")

    monkeypatch.setattr(pods, "list_pods", fails)
    plugin._kubelet = "/run/kubelet.sock"
    without = [created(number=number, devices=[]) for number in range(3, 300)]
    privileged = [created(number=number, devices=PRIVILEGED) for number in (1, 2)]
    (answer,) = runtime.ask(("Synchronize", synchronized(*without, *privileged)))
    assert (updated(answer), asked) == ({}, ["/run/kubelet.sock"])
    assert states(plugin) == {}, "it is not known whether they have GPUs"
    assert len(caplog.messages) == 1, "one line for all of them"
    assert "kubelet's podresources at /run/kubelet.sock: timed out" in caplog.text
    monkeypatch.setattr(pods, "list_pods", lambda *_: of_kubelet(b"main"))
    plugin._asks_from = 0.0
    try_again(runtime, plugin)
    assert [runtime.updated(), runtime.updated()] == [{"container-1": NEAR}, {"container-2": NEAR}]
    assert states(plugin) == {"container-1": "pinned", "container-2": "pinned"}


def test_a_privileged_container_s_other_device_files_are_not_read_whole() -> None:
    """A runtime drops a plugin that answers after 2 s, and 300 such containers once took 1 s."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    files = [f"/dev/tty{number}" for number in range(1000)]
    request = synchronized(created(devices=files))
    sys.setprofile(count)
    try:
        ((_, container),) = messages.listed([request])
    finally:
        sys.setprofile(None)
    assert container.devices == tuple(files)
    assert calls < 15 * len(files)


def test_a_container_is_placed_when_its_gpu_appears(
    runtime: Runtime, plugin: NriPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.create(created(devices=["/dev/nvidia77"]))
    assert read_again == [1], "its driver may have come after the machine was read"
    runtime.ask(("StateChange", happened(5)))
    assert states(plugin) == {"container-1": "missed"}
    topology = plugin._service.node.topology
    gpus = (replace(topology.gpus[0], minor=77), *topology.gpus[1:])
    for known, changes in ((Node(topology), {}), (Node(replace(topology, gpus=gpus)), CHANGED)):
        plugin._service.known = known
        try_again(runtime, plugin)
        if changes:
            assert runtime.updated() == changes
    assert states(plugin) == {"container-1": "pinned"}
    assert [it for it in caplog.messages if "tried again" in it] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_container_of_an_unknown_gpu_is_tried_for_half_a_minute_with_one_log_line(
    runtime: Runtime, plugin: NriPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    of_running(plugin, runtime, created(devices=[], env=["NVIDIA_VISIBLE_DEVICES=77"]))
    (known,) = plugin._containers.values()
    for pause in (2, 4, 8, 16, 30):
        assert states(plugin) == {"container-1": "missed"}
        try_again(runtime, plugin)
        eventually(lambda: known.pause == pause * HOUR, "it is tried again")  # noqa: B023
    eventually(lambda: states(plugin) == {}, "it is left alone")
    try_again(runtime, plugin)
    assert (known.next, known.adjustment.outcome) == (0.0, "unplaced")
    assert (read_again, len(caplog.messages)) == ([1], 1)
    assert "training/job/main is not adjusted, and will be tried again: granted:" in caplog.text


@pytest.mark.parametrize("farewell", [b"", b"\x00\x00\x00\x01\xff\xff\xff\xff"])
def test_the_plugin_reconnects_when_the_runtime_is_back(
    runtime: Runtime,
    plugin: NriPlugin,
    farewell: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(nri, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(nri, "LONGEST_PAUSE", 0.01)
    for _ in range(2):
        caplog.clear()
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
    ours = {"affinityd/placed": BOTH + " mixed"}
    first = synchronized(created(number=1), created(number=2, devices=[]), more=True)
    last = synchronized(created(number=3, cpus=BOTH, annotations=ours), created("other", number=4))
    answers = runtime.ask(("Synchronize", first), ("Synchronize", last))
    assert number(read(answers[0]), 2) == 1, "it waits for more"
    assert updated(answers[1]) == {"container-1": NEAR}
    assert states(plugin) == {"container-1": "pinned", "container-3": "pinned"}


def test_a_running_container_whose_spec_lists_no_file_of_its_gpu_is_left_as_it_is(
    runtime: Runtime, plugin: NriPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    """An update could make systemd take away a GPU that was added beside the spec."""
    caplog.set_level(logging.INFO)
    variable = ["NVIDIA_VISIBLE_DEVICES=0"]
    beside = created(number=1, devices=[], env=variable)
    in_spec = created(number=2, env=variable)
    by_cdi = created(number=3, devices=[], annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})
    both = ["NVIDIA_VISIBLE_DEVICES=0,1"]
    half = created(number=5, devices=["/dev/kmsg", "/dev/nvidia0"], env=both)
    (answer,) = runtime.ask(("Synchronize", synchronized(beside, in_spec, by_cdi, half)))
    assert updated(answer) == {"container-2": NEAR}
    assert [*states(plugin).values()] == ["left", "pinned", "left", "left"]
    line, *_ = (it for it in caplog.messages if "start" in it)
    assert line.startswith("container training/job/main: its CPUs stay until it starts again")
    created_so = created(number=4, devices=[], env=variable, shares=1024)
    assert runtime.create(created_so).cpus == NEAR, "a container that is created is not concerned"
    (resize,) = runtime.ask(("UpdateContainer", resized(created_so, 2)))
    assert updated(resize) == {"container-4": BOTH}, "kubelet changes it anyway"


def test_a_cpuset_that_kubelet_set_limits_the_other_containers(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    """Without kubelet's answer it is unknown which CPUs are exclusive to another container."""
    of_kubelet = created(number=2, cpus=FAR)
    (answer,) = runtime.ask(("Synchronize", synchronized(created(number=1), of_kubelet)))
    assert updated(answer) == {}
    assert states(plugin) == {"container-1": "kept", "container-2": "kept"}
    given = runtime.create(created(number=3))
    assert (given.cpus, given.environment["AFFINITYD_NODES"]) == ("", "0-1")
    runtime.ask(("StateChange", happened(11, "container-2")))
    assert runtime.create(created(number=4)).cpus == NEAR
    assert "container-2" not in plugin.states


def test_a_resized_container_never_has_fewer_cpus_than_its_limit(
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


def of_running(plugin: NriPlugin, runtime: Runtime, *requests: bytes) -> dict[str, str]:
    (answer,) = runtime.ask(("Synchronize", synchronized(*requests)))
    assert not plugin._listed
    return updated(answer)


@pytest.mark.parametrize(
    ("request_", "state"),
    [
        ({"annotations": {"affinityd/placed": f"{BOTH} mixed"}, "cpus": BOTH}, "pinned"),
        ({"annotations": {"affinityd/placed": f"{BOTH} mixed"}, "cpus": FAR}, "kept"),
        # A pod's author can set a variable.
        ({"env": [f"AFFINITYD_CPULIST={FAR}"], "cpus": FAR}, "kept"),
        # The container was placed while it ran.
        ({"cpus": NEAR}, "pinned"),
        ({"cpus": NEAR, "namespace": "gone"}, "pinned"),
        ({"cpus": NEAR, "labels": {"affinityd": "observe"}}, "pinned"),
        ({"cpus": FAR, "namespace": "gone"}, None),
        ({"cpus": NEAR, "devices": []}, None),
    ],
)
def test_a_cpuset_given_by_affinityd_is_recognized_as_such(
    runtime: Runtime, plugin: NriPlugin, request_: dict[str, Any], state: str | None
) -> None:
    of_running(plugin, runtime, created(number=1, **request_))
    assert states(plugin).get("container-1") == state
    assert runtime.create(created(number=2)).cpus == (NEAR if state == "pinned" else "")


def test_a_placed_container_has_a_mark_that_its_author_cannot_forge(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    assert runtime.create(created()).mark == f"{NEAR} local"
    assert runtime.create(created(number=2, cpus=FAR)).mark == ""
    assert states(plugin) == {"container-1": "pinned", "container-2": "kept"}


def test_a_placed_container_that_is_not_recognized_yet_limits_others_only_for_a_while(
    runtime: Runtime, plugin: NriPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin._kubelet = "/nonexistent"
    early = created(number=1, cpus=NEAR, devices=PRIVILEGED), created(number=2)
    assert of_running(plugin, runtime, *early) == {}
    assert states(plugin) == {"container-2": "missed"}
    assert runtime.create(created(number=4, devices=[])) == Given()
    assert outcomes(plugin) == {"no_gpu": 1}, "the cpusets of others do not concern it"
    monkeypatch.setattr(pods, "list_pods", lambda *_: of_kubelet(b"main"))
    plugin._asks_from = 0.0
    try_again(runtime, plugin)
    assert runtime.updated() == {"container-2": NEAR}
    assert states(plugin) == {"container-1": "pinned", "container-2": "pinned"}
    assert runtime.create(created(number=3)).cpus == NEAR


def test_kubelet_s_answer_for_one_request_is_not_used_for_a_later_one(
    runtime: Runtime, plugin: NriPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin._kubelet = "/nonexistent"
    of_running(plugin, runtime, created(devices=PRIVILEGED))
    monkeypatch.setattr(pods, "list_pods", lambda *_: of_kubelet(b"main"))
    plugin._asks_from = 0.0
    try_again(runtime, plugin)
    assert runtime.updated() == CHANGED
    monkeypatch.setattr(pods, "list_pods", lambda *_: of_kubelet(b"other"))
    assert runtime.create(created(number=2, devices=PRIVILEGED)).cpus == ""


REFUSALS = [field(1, field(1, 2)), field(2, field(1, field(1, "container-1")))]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_missed_container_is_tried_when_it_exists_and_again_if_the_runtime_refuses(
    runtime: Runtime, plugin: NriPlugin, refusal: bytes
) -> None:
    known, plugin._service.known = plugin._service.known, None
    runtime.create(created())
    plugin._service.known = known
    try_again(runtime, plugin)
    assert states(plugin) == {"container-1": "missed"}, "the runtime would ignore the update"
    runtime.ask(("StateChange", happened(5)))
    try_again(runtime, plugin)
    assert runtime.updated(refusal) == CHANGED
    eventually(lambda: states(plugin) == {"container-1": "missed"}, "it is refused")
    try_again(runtime, plugin)
    assert runtime.updated() == CHANGED
    runtime.ask(("StateChange", b""))
    assert states(plugin) == {"container-1": "pinned"}


def test_a_missed_container_is_tried_again_with_the_values_of_its_last_update(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    known, plugin._service.known = plugin._service.known, None
    of_running(plugin, runtime, created())
    runtime.ask(("UpdateContainer", resized(created(), 2)))
    plugin._service.known = known
    try_again(runtime, plugin)
    assert runtime.updated() == {"container-1": BOTH}
    plugin._service.known = None
    of_running(plugin, runtime, created())
    runtime.ask(("UpdateContainer", created() + field(3, field(2, field(6, FAR)))))
    plugin._service.known = known
    try_again(runtime, plugin)
    eventually(lambda: states(plugin) == {"container-1": "kept"}, "its CPUs are kubelet's choice")


def test_a_resize_that_could_not_be_planned_is_tried_again(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    runtime.create(created())
    runtime.ask(("StateChange", happened(5)))
    known, plugin._service.known = plugin._service.known, None
    (answer,) = runtime.ask(("UpdateContainer", resized(created(cpus=NEAR), 2)))
    assert (updated(answer), states(plugin)) == ({}, {"container-1": "missed"})
    plugin._service.known = known
    try_again(runtime, plugin)
    assert runtime.updated() == {"container-1": BOTH}


def test_synchronize_ends_in_time_and_remaining_containers_are_placed_later(
    runtime: Runtime, plugin: NriPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nri, "SYNCHRONIZE_SECONDS", 0.0)
    assert of_running(plugin, runtime, created()) == {}
    assert runtime.updated() == CHANGED
    plugin._unread = messages.listed([synchronized(created(number=2, cpus=FAR))])
    assert plugin._create_container(created(number=3)) == b"", "all CPUs may be exclusive ones"
    plugin._stop_container(created(number=2))
    assert [*plugin._containers] == ["container-1", "container-3"]


def test_a_container_that_no_attempt_can_place_is_neither_missed_nor_tried_again(
    runtime: Runtime, plugin: NriPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wrong = {"affinityd/mode": "x"}
    of_running(plugin, runtime, created(pod_annotations=wrong))
    topology = plugin._service.node.topology
    gpus = [replace(gpu, numa_node=None) for gpu in topology.gpus]
    plugin._service.known = Node(replace(topology, gpus=tuple(gpus)))
    of_running(plugin, runtime, created(pod_annotations=wrong), created(number=2))
    assert {known.adjustment.outcome for known in plugin._containers.values()} == {"unplaced"}
    assert states(plugin) == {}
    assert "the annotation affinityd/mode: 'x' is not one of" in caplog.text
    assert "its CPUs stay, since the NUMA node of a GPU is not known" in caplog.text
    assert "tried again" not in caplog.text


def test_a_wrong_annotation_of_a_privileged_container_without_a_gpu_is_not_reported(
    runtime: Runtime,
    plugin: NriPlugin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pods, "list_pods", lambda *_: of_kubelet(b"other"))
    plugin._kubelet = "/nonexistent"
    runtime.create(created(devices=PRIVILEGED, pod_annotations={"affinityd/mode": "x"}))
    assert (outcomes(plugin), caplog.messages) == ({"no_gpu": 1}, [])


def test_requests_of_siblings_do_not_count_for_a_container_without_a_request(
    runtime: Runtime, plugin: NriPlugin
) -> None:
    loader = created(number=1, devices=[], shares=2048, pod="one")
    runtime.create(loader)
    assert runtime.create(created(number=2, shares=2, pod_shares=2048, pod="one")).cpus == NEAR
    assert runtime.create(created(number=3, shares=2, pod_shares=2048, pod="two")).cpus == BOTH
    assert sum(plugin.outcomes.values()) == 3


def test_the_cpuset_of_a_stopped_container_is_no_limit(runtime: Runtime, plugin: NriPlugin) -> None:
    kubelets = created(number=1, cpus=FAR)
    runtime.create(kubelets)
    assert runtime.create(created(number=2)).cpus == ""
    runtime.ask(("StopContainer", kubelets))
    assert runtime.create(created(number=3)).cpus == NEAR
    assert "container-1" not in plugin.names


def test_a_list_of_containers_is_forgotten_if_a_lost_connection_cut_it_off(
    runtime: Runtime, plugin: NriPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nri, "FIRST_PAUSE", 0.01)
    runtime.ask(("Synchronize", synchronized(created(number=1), more=True)))
    runtime.close()
    eventually(runtime.has_caller, "the plugin connects again")
    runtime.accept()
    assert of_running(plugin, runtime, created(number=2)) == {"container-2": NEAR}
