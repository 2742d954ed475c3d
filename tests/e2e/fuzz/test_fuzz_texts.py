"""Every reader of a text reads any text soon, or refuses it in one line."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.audit.jobs import membership, service
from affinityd.client import ask_daemon
from affinityd.cpuset import parse_list, parse_mask
from affinityd.discovery.pci import bus_order, is_pci_address
from affinityd.errors import AffinityError
from affinityd.linux.memory_policy import parse_policy
from affinityd.linux.processes import parse_stat
from affinityd.request.devices import all_devices, read_visible
from affinityd.request.environment import SENT, local_rank
from affinityd.request.parameters import MAX_LENGTH, PARAMETERS, parse_query, parse_request
from affinityd.request.resolve import answer
from affinityd.slurm.commands import parse as parse_slurmd
from affinityd.topology.model import Node
from tests.e2e.fuzz.inputs import MANY, long_texts, read_or_refused, texts, words
from tests.support.asking import ask
from tests.support.machines.facts import machine

DGX, MIXED, AMD = machine("dgx-a100"), machine("mixed-models"), machine("mi250x")


def a_task_of_slurm(text: str) -> object:
    environ = dict.fromkeys((name for name in SENT if name.startswith("SLURM")), text[:300])
    environ |= {"SLURM_LOCALID": "1", "SLURM_GTIDS": "0,1", "SLURM_STEP_ID": "0"}
    query = [("env", f"{name}={value}") for name, value in environ.items()]
    return answer(Node(DGX), parse_query(query))


def a_launchers_environment(text: str) -> object:
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_LOCALID", "SLURM_GTIDS")
    return local_rank(dict.fromkeys((*names, "SLURM_STEP_ID"), text))


def asking(name: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        pairs = [(name, text[:MAX_LENGTH])]  # the daemon refuses a longer value
        if name == "job":
            pairs += [("ranks", "4"), ("rank", "1")]
        parse_request(pairs)
        return [ask(topology, **dict(pairs)) for topology in (DGX, MIXED, AMD)]

    return read


CPULIST = words("0 1 3 255 8191 8192 4294967295 - , : / 0-8191:8191,")
DEVICES = (
    *words("0 1 7 , -1 GPU- MIG- none all void minor:0 drm:128 / ; 0000:07:00.0 00000000:07:00.0"),
    *("ROCR_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=", DGX.gpus[0].uuid or "GPU-0"),
)
CGROUPS = (
    *words("0:: 5:cpuset: 1:name=systemd: / .. kubepods kubepods.slice : slurm uid_1 job_7"),
    *words("step_0 system.slice slurmstepd.scope user.slice cri-containerd- .scope a.service"),
    f"kubepods-pod{'0' * 8}_{'0' * 4}_{'0' * 4}_{'0' * 4}_{'0' * 12}.slice",
    *("f" * 64, " (deleted)", f"pod{'0' * 32}", "a/" * 50, "\n"),
)
SLURMD = (
    *("slurmd: ", "[2026-11-22T14:20:04.519] ", "Gres Name=", "gpu", " Type=", "a100", "(null)"),
    *(" File=", "/dev/nvidia[0-7]", " Cores=", "0-15", " Links=", "-1,4", " Count=", "1", "\n"),
    *("error: ", "warning: ", "fatal: ", "[0-99999]", "=", ",", "9" * 5000),
)
HTTP = (
    *("HTTP/1.1", " ", "200", "422", "\r\n", "\r\n\r\n", "content-length:", "0", "4", "OK", "x"),
    *("Malformed request: ", "\ud800", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"),
)
STAT = ("1", " ", "(", ")", "(a)", "S", "-1", "0 ", "1 (a) S 0 1 1 0 -1 0 ", "0 " * 40, "9" * 5000)
OF_PARAMETERS = {"cpuset": CPULIST, "rank": CPULIST}
MASK = ("f", "0x", "00000000", ",", "ffffffff", "g")
POLICY = ("bind", ":", "0-3", ",", "prefer", "=", "static")
PCI = ("0000:", "07:", "00", ".0", "f", ":", ".", "g")

#: What a text is → its reader, the tokens of its grammar, and the error that the reader may raise.
READERS: dict[str, tuple[Callable[[str], object], tuple[str, ...], type[Exception] | None]] = {
    "a cpulist": (parse_list, CPULIST, ValueError),
    "a mask": (parse_mask, MASK, ValueError),
    "a visible-device list": (lambda text: read_visible(text, all_devices(DGX)), DEVICES, None),
    "a PCI address": (lambda text: is_pci_address(text) and bus_order(text), PCI, None),
    "what slurmd prints": (parse_slurmd, SLURMD, None),
    "a task of Slurm": (a_task_of_slurm, CPULIST, AffinityError),
    "cgroups of a job": (membership, CGROUPS, None),
    "cgroups of a service": (service, CGROUPS, None),
    "a stat file": (lambda text: parse_stat(text.encode(errors="replace")), STAT, None),
    "an HTTP answer": (
        lambda text: ask_daemon.parse(text.encode(errors="surrogatepass")),
        *(HTTP, ValueError),
    ),
    "a memory policy": (parse_policy, POLICY, None),
    "what launchers say": (
        a_launchers_environment,
        ("0", "1", "4", "(x2)", ",", "-1"),
        AffinityError,
    ),
    **{
        f"parameter {name}": (asking(name), OF_PARAMETERS.get(name, DEVICES), AffinityError)
        for name in PARAMETERS
    },
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@MANY
def test_any_text_is_read_or_refused_in_one_line_soon(name: str, data: st.DataObject) -> None:
    read, tokens, refusal = READERS[name]
    is_long = data.draw(st.integers(0, 7)) == 7
    text = data.draw(long_texts(*tokens) if is_long else texts(*tokens))
    read_or_refused(lambda: read(text), *filter(None, [refusal]))
