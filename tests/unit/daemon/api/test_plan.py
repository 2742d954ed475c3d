"""Answers of `GET /plan` to requests, and the replies that the daemon keeps."""

import json
import tracemalloc
from contextlib import suppress
from urllib.parse import urlencode

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from affinityd.cpuset import format_list, parse_list
from affinityd.daemon.api import plan
from affinityd.errors import AffinityError, InvalidRequestError, UnsatisfiableError
from affinityd.json_codec import dumps
from affinityd.planner.modes import MODES
from affinityd.request.document import document
from affinityd.request.environment import CUDA, READ
from affinityd.request.parameters import MAX_LENGTH, PARAMETERS, parse_request
from affinityd.request.resolve import Caller, answer
from affinityd.topology.model import Node
from tests.support.asking import answer_to, ask
from tests.support.machines.facts import machine
from tests.support.tables import words

A100 = Node(machine("dgx-a100"))
#: Memory for one request: the planner builds some thousand objects of 60 bytes, and sets.
MOST_BYTES = 6_000_000
TWO_GPUS = b"gpus=0,1&share=requested&mode=unique_contiguous"


def test_an_answer_depends_on_the_caller_and_the_format() -> None:
    cpus = parse_list("48-51")
    _, text = answer_to(A100, TWO_GPUS, form="cpulist")
    assert text == "48-55,176-183\n56-63,184-191\n"
    _, text = answer_to(A100, TWO_GPUS, Caller(cpus, cpus), form="cpulist")
    assert text == "48-49\n50-51\n"
    reply = ask(A100.topology, gpus="0,1", share="requested")
    assert json.loads(answer_to(A100, TWO_GPUS)[1]) == json.loads(dumps(document(reply)))


@pytest.mark.parametrize("mode", ["node", "unique_contiguous"])
def test_a_rank_gets_the_same_answer_whichever_rank_asked_first(mode: str) -> None:
    queries = [f"gpus=0,1,0,5&mode={mode}&rank={rank}".encode() for rank in range(4)]
    alone = []
    for query in queries:
        plan._reply.cache_clear()
        alone.append(answer_to(A100, query)[1])
    assert [answer_to(A100, query)[1] for query in queries] == alone
    with pytest.raises(InvalidRequestError, match="there is no rank 4; the request has ranks 0-3"):
        answer_to(A100, queries[0].replace(b"rank=0", b"rank=4"))


def test_a_stated_cpuset_may_exceed_the_mask_but_not_the_cgroup_s_cpuset() -> None:
    wide = {"mode": "node", "gpus": "0", "mask": "48-49", "may_use": "48-55"}
    reply = ask(A100.topology, **wide, cpuset="0-63")
    assert (format_list(reply.allowed), reply.source) == ("48-55", "request")
    with pytest.raises(
        UnsatisfiableError, match=r"\Acpuset: none of '0-47' is in the caller's own"
    ):
        ask(A100.topology, **wide, cpuset="0-47")


@pytest.mark.parametrize(
    "stated",
    [
        "cpuset=0-255",
        "LOCAL_RANK=1 SLURM_JOB_ID=1",
        "SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_GTIDS=0,1 SLURM_CPU_BIND_LIST=0xf000000000000",
        "granted=0,1,2,3 visible=3,2",
    ],
)
def test_no_cpu_beyond_the_callers_cpuset_is_allowed(stated: str) -> None:
    reply = ask(A100.topology, mask="48-49", may_use="48-51", mode="node", **words(stated))
    assert reply.allowed <= parse_list("48-51")
    assert all(rank.cpus <= parse_list("48-51") for rank in reply.plan.ranks)


def test_the_mask_is_no_limit_if_the_cpuset_is_unknown() -> None:
    asked, caller = parse_request([("gpus", "0"), ("cpuset", "0-63")]), Caller(parse_list("48"))
    reply = answer(A100, asked, caller)
    assert (format_list(reply.allowed), reply.within) == ("0-63", None)
    reply = answer(A100, parse_request([("gpus", "0")]), Caller(parse_list("48-51")))
    assert format_list(reply.allowed) == "48-51"


#: Values that request as much as possible, each for any variable or parameter.
GREEDY = (
    *(
        "0",
        "255",
        "256",
        "99999999",
        "4294967294",
        "2147483648",
        "99999999(x2)",
        "mask_cpu:",
        "all",
    ),
    *("0-65535", "0-8191", "0-8190:2", "0-255", ",".join(["0"] * 24_000), ",".join(["1"] * 256)),
    *("0x" + "f" * 30_000, "0x" + ",f" * 15_000, ",".join(["0xff"] * 256), "0x" + "f" * 2048),
)
greedy = st.sampled_from(GREEDY)
variables = st.tuples(st.sampled_from(sorted(READ)), greedy).map("=".join)


@given(
    st.dictionaries(st.sampled_from(sorted(PARAMETERS)), greedy, max_size=3),
    st.sampled_from([None, *MODES]),
    st.lists(variables | st.just("SLURM_STEP_ID=0"), max_size=6),
)
@example({}, None, ["LOCAL_RANK=99999999"])
@example({"ranks": "256", "cpus": "256"}, "socket", [])
@example({"ranks": "256"}, None, ["LOCAL_RANK=0", f"{CUDA}=0", "AFFINITYD_JOB_GPUS=0"])
@example({}, None, [f"{name}=0-65535" for name in ("AFFINITYD_CPULIST", "AFFINITYD_ALLOWED")])
@settings(phases=[Phase.explicit, Phase.generate])  # long values take minutes to shrink
def test_no_query_makes_the_daemon_build_more_than_a_few_thousand_objects(
    stated: dict[str, str], mode: str | None, variables: list[str]
) -> None:
    pairs = [*stated.items(), *(("env", variable) for variable in variables)]
    pairs += [("mode", mode)] if mode and "mode" not in stated else []
    tracemalloc.start()
    try:
        answer_to(A100, urlencode(pairs).encode())
    except AffinityError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < MOST_BYTES


def test_a_query_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(InvalidRequestError, match=r"49153 characters is too long; the most is"):
        answer_to(A100, b"?" * (MAX_LENGTH + 1))
    masks = ",".join(["0x" + "f" * 128] * 256)  # of 256 tasks on 512 CPUs
    slurm = [("env", "SLURM_STEP_ID=0"), ("env", f"SLURM_CPU_BIND_LIST={masks}")]
    assert answer_to(A100, urlencode(slurm).encode())


def test_kept_replies_take_little_memory() -> None:
    everything = "&".join(
        f"env=AFFINITYD_{name}=0-8191" for name in ("SLICE", "ALLOWED", "CPULIST")
    )
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, 1 + plan.MOST_REPLIES):
        for query in (
            f"ranks=256&mode=socket&cpus={number}",
            f"{everything}&cpuset=0-{8000 + number}",
        ):
            with suppress(AffinityError):
                answer_to(A100, query.encode())
    most, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    plan._reply.cache_clear()
    assert most - before < 40 * 2**20
