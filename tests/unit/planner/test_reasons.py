"""The reasons that come with a plan, and the lines of its refusals."""

from __future__ import annotations

import pytest

from tests.support.asking import ask, cpulists
from tests.support.machines.by_hand import made


@pytest.mark.parametrize(
    ("parameters", "reserved", "reason"),
    [
        pytest.param({}, "", "GPU 0 is on NUMA node 0", id="where the GPU is"),
        pytest.param({}, "", "8 cores of the 8 of node 0", id="how many of which cores"),
        pytest.param({}, "0-1,8", "CPUs 0-1,8 of node 0 are reserved", id="reserved CPUs"),
        pytest.param(
            {"cpuset": "0-5"},
            "",
            "CPUs 6-15 of node 0 are outside the cpuset or mask",
            id="the cpuset",
        ),
        pytest.param(
            {"cpuset": "0-15", "mode": "socket"},
            "",
            "CPUs 16-31 of node 0's socket are outside the cpuset or mask",
            id="the cpuset, of the whole socket",
        ),
        pytest.param(
            {"cpuset": "0-15", "mode": "even"},
            "",
            "CPUs 16-31 of the machine are outside the cpuset or mask",
            id="the cpuset, of the whole machine",
        ),
        pytest.param(
            {"max_physical_cores": "3"},
            "",
            "max_physical_cores leaves out 5 cores",
            id="the maximum",
        ),
        pytest.param(
            {"multithreading": "single_logical"},
            "",
            "single_logical leaves out the siblings 1,3,5,7,9,11,13,15",
            id="single_logical",
        ),
        pytest.param(
            {"multithreading": "single_logical", "max_physical_cores": "1"},
            "",
            "single_logical leaves out the siblings 1",
            id="single_logical, of what the maximum left",
        ),
        pytest.param(
            {"gpus": "0,0,0"}, "", "balanced leaves 2 cores of node 0 unused", id="balanced"
        ),
        pytest.param(
            {"gpus": "0,0,0", "balanced": "false"},
            "",
            "an equal division leaves 2 cores of node 0 unused",
            id="a remainder",
        ),
        pytest.param(
            {"share": "node"},
            "",
            "each GPU of node 0 has its own block; balanced may leave cores of it unused",
            id="the node's other GPUs",
        ),
        pytest.param({"gpus": "0,0", "mode": "node"}, "", "shared by 2 ranks", id="other ranks"),
        pytest.param(
            {"cpuset": "16-31"},
            "",
            "that node has no allowed CPU; node 1 is nearest of those that do (distance 20)",
            id="a home that is not the GPU's own",
        ),
        pytest.param({"gpus": "1"}, "", "does not say on which NUMA node GPU 1 is", id="unknown"),
        pytest.param({"gpus": "0,1"}, "", "node 1 was home to the fewest ranks", id="spread"),
        pytest.param(
            {"gpus": "2"},
            "",
            "that node has no CPU; node 0 is nearest of those that do (distance unknown)",
            id="a node without CPUs",
        ),
        pytest.param({"mode": "even"}, "", "16 cores of the 16 of node 0 and node 1", id="even"),
        pytest.param(
            {"mode": "even", "gpus": "0,2"}, "", "its block begins on node 1", id="even, elsewhere"
        ),
    ],
)
def test_reasons_say_why_and_what_was_left_out_for_which_cause(
    parameters: dict[str, str], reserved: str, reason: str
) -> None:
    topology = made(
        {0: "0-15", 1: "16-31", 2: ""},
        gpus=[0, None, 2],
        threads=2,
        siblings="adjacent",
        distances=[("0", "1", 20)],
    )
    asked = {"gpus": "0", "share": "requested", **parameters}
    reasons = ask(topology, reserved=reserved, **asked).ranks[-1].reasons
    assert any(sentence.endswith(reason) for sentence in reasons), reasons


def test_ranks_that_share_a_part_of_their_cores_are_counted_as_sharing() -> None:
    """GPU 0 is on the node of both packages, GPU 1 on a node of the first alone."""
    topology = made({0: "0,4", 1: "1-3"}, gpus=[0, 1], packages={0: "0-3", 1: "4"})
    reply = ask(topology, mode="socket")
    assert cpulists(reply) == ["0-4", "0-3"]
    wide, narrow = reply.ranks
    assert wide.reasons[-1] == "socket: 5 cores of the 5 of node 0 and node 1, shared by 2 ranks"
    assert (wide.threads, narrow.threads) == (2, 2)


def test_nothing_is_said_to_be_left_out_where_nothing_is() -> None:
    (rank,) = ask(made({0: "0-3"}), share="requested").ranks
    assert rank.reasons == (
        "GPU 0 is on NUMA node 0",
        "unique_contiguous: 4 cores of the 4 of node 0",
    )
