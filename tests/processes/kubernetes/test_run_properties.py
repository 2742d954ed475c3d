"""`run`, whatever a container's variables say: it is pinned as Python alone would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from affinityd.cpuset import CpuSet
from affinityd.json_codec import dumps
from tests.processes.kubernetes.test_run import meant
from tests.support.asking import ask
from tests.support.daemons import running
from tests.support.machines.sysfs_tree import nvml_report, write_tree
from tests.support.pods import Pod
from tests.unit.request.test_devices import EIGHT

UUIDS = [str(gpu.uuid) for gpu in EIGHT.gpus]
GPUS = range(len(UUIDS))
NAMES = [*UUIDS, *map(str, GPUS), "MIG-a1", "MIG-a2"]

#: What may be in a list where it is not meant to be.
ODD = [
    *("all", "none", "void", "", "MIG-a", "MIG-ff", "GPU-", "GPU-ff", "GPU-1", "5:0", "5:1", "9:0"),
    *(
        "-1",
        "-0",
        "+1",
        "01",
        "1a",
        " 1",
        "1 ",
        "\t2",
        "9",
        "1;0",
        "0=1",
        "*",
        "?",
        "[0]",
        "é",
        "$x",
    ),
    *("minor:3", "NoDevFiles", "99999999999999999999", *(gpu.pci_bus_id for gpu in EIGHT.gpus)),
]
LISTS = st.lists(st.sampled_from([*NAMES, *NAMES, *ODD]), min_size=1, max_size=4).map(",".join)

#: The cores of each GPU, which no other has.
BLOCKS = [ask(EIGHT, gpus=str(gpu), share="node", mode="unique_contiguous").cpus for gpu in GPUS]


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("node")
    tree = write_tree(EIGHT, folder / "machine")
    (tree / "nvml.json").write_text(dumps(nvml_report(EIGHT)))
    with running(folder, "--root", str(tree)) as daemon:
        yield Pod(folder / "pod", daemon.socket, {"AFFINITYD_MODE": "unique_contiguous"})


def gpus_of(cpus: CpuSet | None) -> list[int] | None:
    return None if cpus is None else [gpu for gpu in GPUS if BLOCKS[gpu] & cpus]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    minors=st.lists(st.sampled_from(GPUS), unique=True) | st.just(list(GPUS)),
    listed=st.none() | LISTS,
    visible=st.none() | LISTS,
)
def test_the_script_passes_on_any_variable_as_it_is(
    pod: Pod, minors: list[int], listed: str | None, visible: str | None
) -> None:
    pod.has(*(f"nvidia{minor}" for minor in minors))
    both = {"NVIDIA_VISIBLE_DEVICES": listed, "CUDA_VISIBLE_DEVICES": visible}
    said = {name: text for name, text in both.items() if text is not None}
    expected = meant(EIGHT, [f"nvidia{minor}" for minor in sorted(minors)], said)
    assert gpus_of(pod.run(cpus=EIGHT.online, **said).cpus) == gpus_of(expected)
