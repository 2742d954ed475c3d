"""JSON and line files of other programs: each is read, or refused in one line."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import config
from affinityd.cli.commands.topology import describe
from affinityd.config import NODE_FILE, settings
from affinityd.config.settings import Settings
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.discovery.nvml import (
    GpuProcesses,
    NvmlGpu,
    NvmlProcess,
    NvmlReport,
    ProcessReport,
    read_report,
)
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.json_codec import dumps, loads
from affinityd.kubernetes.nri import messages, reply
from affinityd.kubernetes.nri.messages import PLUGIN, REQUEST, Trunk, Ttrpc, packed
from affinityd.kubernetes.pods import containers
from affinityd.linux.cgroup import Cgroups, cpuset_of
from affinityd.linux.files import environment_of
from affinityd.linux.processes import parse_stat, process_of, uid_of
from affinityd.linux.protobuf import field, read
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS
from affinityd.topology.document import (
    TopologyDocument,
    from_document,
    read_node,
    to_document,
    write_node,
)
from affinityd.topology.model import Node, Topology
from tests.e2e.fuzz.inputs import MANY, SOME, damaged, mutants, read_or_refused, texts, words
from tests.support.asking import ask
from tests.support.documents import in_json
from tests.support.machines.facts import machine
from tests.support.nri import created
from tests.support.tiny import tiny

TWO_VENDORS = machine("two-vendors")

NVML = NvmlReport(
    gpus=(
        NvmlGpu(0, "GPU-0", "0000:07:00.0", 3, "A100", ("MIG-0",), frozenset({1})),
        NvmlGpu(1, error="GPU is lost"),
    ),
    driver_version="550.54.15",
)
OF_GPU = (NvmlProcess(7, "compute", 2**30, "MIG-0"),)
PROCESSES = ProcessReport(
    gpus=(GpuProcesses(0, "GPU-0", "0000:07:00.0", OF_GPU), GpuProcesses(1, error="GPU is lost")),
)
DOCUMENTS: dict[str, tuple[object, Callable[[str], object]]] = {
    "NVML's report": (in_json(NVML), partial(read_report, NvmlReport)),
    "NVML's processes": (in_json(PROCESSES), partial(read_report, ProcessReport)),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
@MANY
def test_a_document_of_arbitrary_content_is_read_or_refused(name: str, data: st.DataObject) -> None:
    whole, read = DOCUMENTS[name]
    assert read_or_refused(lambda: read(json.dumps(whole))) is None
    text = data.draw(mutants(whole))
    read_or_refused(lambda: read(text), ValueError)


def use(topology: Topology) -> None:
    """Use a topology as commands and daemons do: each step gives an answer or one line."""
    text = dumps(to_document(topology))
    assert from_document(loads(TopologyDocument, text, "topology")) == topology
    for line in describe(topology):
        assert line.isprintable(), line
    for gpus in ("all", "0", topology.gpus[0].pci_bus_id if topology.gpus else "GPU-0"):
        for mode in ("node", "socket", "unique_contiguous", "even"):
            read_or_refused(lambda: plan(topology, gpus, mode), AffinityError)  # noqa: B023


def plan(topology: Topology, gpus: str, mode: str) -> None:
    reply = ask(topology, gpus=gpus, mode=mode)
    for form in FORMATS:
        assert all(line.isprintable() for line in render(reply, form).split("\n"))


@given(data=st.data())
@MANY
def test_a_node_file_with_arbitrary_content_gives_a_machine_or_is_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / NODE_FILE
    write_node(path, Node(TWO_VENDORS, reserved=frozenset({1})))
    whole = path.read_bytes()
    path.write_bytes(data.draw(mutants(json.loads(whole)).map(str.encode) | damaged(whole)))
    nodes: list[Node] = []
    read_or_refused(lambda: nodes.append(read_node(path)), ValueError, OSError)
    for node in nodes:
        use(node.topology)


CONFIGURED = (
    *(f"AFFINITYD_{name.upper()}=" for name in settings.SETTING_NAMES),
    *words("0-3 off 127.0.0.1:9465 [::1]:0 none # ; ' \" \\ = on root 4294967295"),
    *("\n", "a b", "export "),
)
CONTENT = texts(*CONFIGURED).map(lambda text: text.encode(errors="surrogatepass")) | st.binary()


@given(CONTENT, st.dictionaries(st.sampled_from(settings.SETTING_NAMES), texts(*CONFIGURED)))
@MANY
def test_any_settings_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, values: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "affinityd.conf"
    path.write_bytes(content)
    in_file = {"AFFINITYD_CONFIG": os.fspath(path)}
    environ = {f"AFFINITYD_{name.upper()}": text for name, text in values.items()}
    read_or_refused(lambda: config.variables(in_file), InvalidRequestError)
    environ["AFFINITYD_CONFIG"] = "/none"
    read_or_refused(lambda: settings.load({}, in_file), InvalidRequestError)
    read_or_refused(lambda: settings.load({}, environ), InvalidRequestError)
    read_or_refused(lambda: settings.load(values, {}), InvalidRequestError)


FILES = {
    "7/status": b"Name:\tpython\nUmask:\t0022\nTgid:\t7\nPid:\t7\nUid:\t1000\t1000\t1000\t1000\n",
    "7/cgroup": b"5:cpuset:/slurm/uid_1/job_7\n1:name=systemd:/system.slice/a.service\n0::/a/b\n",
    "7/stat": b"7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 3 0 99 0 0 "
    + b"0 " * 30
    + b"\n",
    "7/environ": b"SLURM_JOB_ID=7\0TEAM=vision\0HOME=/\0",
    "self/mountinfo": (
        b"36 35 0:29 / /sys/fs/cgroup/cpuset rw,nosuid shared:9 - cgroup cgroup rw,cpuset\n"
        b"37 35 0:30 /../.. /sys/fs/cgroup/unified rw - cgroup2 none rw,nsdelegate\n"
    ),
}


@given(st.fixed_dictionaries({name: damaged(content) for name, content in FILES.items()}))
@MANY
def test_damaged_files_of_proc_give_fewer_facts_and_no_error(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root = tmp_path_factory.getbasetemp() / "damaged-proc"
    proc = root / "proc"
    for name, content in files.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_bytes(content)
    read_or_refused(lambda: cpuset_of(7, os.fspath(root)))
    read_or_refused(lambda: Cgroups.of(7, os.fspath(root)).confining)
    read_or_refused(lambda: (uid_of(7, os.fspath(proc)), process_of(7, os.fspath(proc))))
    read_or_refused(lambda: parse_stat(files["7/stat"]))
    read_or_refused(lambda: environment_of(7, os.fspath(root)))


# Bytes of a container runtime, and of kubelet.

REQUESTS = (created(), created(cgroup="kubepods-pod1.slice", env=["A=b"], quota=100000, cpus="0"))
BYTES = st.binary(max_size=64) | st.sampled_from(REQUESTS).flatmap(damaged)
PARTS = packed(Ttrpc(PLUGIN, 1, REQUEST, REQUESTS[1]))
ASKED = field(1, "nri.pkg.api.v1alpha1.Plugin") + field(2, "CreateContainer")


@given(BYTES, st.lists(st.binary(max_size=20) | damaged(PARTS), max_size=5))
@MANY
def test_any_bytes_are_read_or_raise_value_error(data: bytes, parts: list[bytes]) -> None:
    trunk = Trunk()
    for reader in (read, messages.created, messages.updating, messages.has_more, containers):
        with suppress(ValueError):
            reader(data)
    with suppress(ValueError):
        assert len([*messages.listed([data])]) <= len(data)
    with suppress(ValueError):
        for part in parts:
            trunk.received(part)


@given(BYTES, BYTES)
@SOME
def test_a_container_runtime_never_gets_an_error(payload: bytes, request: bytes) -> None:
    rules = Settings(nri="/nonexistent", nri_namespaces={"*": {}})
    plugin = NriPlugin(rules, KnownNode(Node(tiny())), lambda: None)
    for answer in (plugin._create_container, plugin._update_container, plugin._synchronize):
        for asked in (ASKED + field(3, payload), request):
            answered = reply(asked, {"CreateContainer": answer}, lambda: suppress(Exception))
            assert set(read(answered)) == {2}  # a payload, and no status
