"""What a caller is warned of."""

from __future__ import annotations

import pytest

from affinityd.topology.model import Topology
from tests.support.asking import ask, codes
from tests.support.machines.facts import machine


@pytest.mark.parametrize(
    ("topology", "parameters", "expected"),
    [
        pytest.param(machine("dgx-a100"), {}, [], id="nothing is odd"),
        pytest.param(
            machine("dgx-a100"),
            {"gpus": "0,0"},
            ["shared_gpu", "shared_gpu"],
            id="two ranks on one GPU",
        ),
        pytest.param(
            machine("dgx-a100"),
            {"gpus": "0,2", "cpuset": "0-31", "mode": "node"},
            ["remote_home"],
            id="one of two is remote",
        ),
        pytest.param(machine("flat"), {}, ["unknown_locality"] * 4, id="unknown nodes"),
        pytest.param(machine("mixed-models"), {}, ["ambiguous_index"], id="several models"),
    ],
)
def test_warnings(topology: Topology, parameters: dict[str, str], expected: list[str]) -> None:
    reply = ask(topology, **parameters)
    assert codes(reply) == expected
    assert all(len(warning.message.splitlines()) == 1 for warning in reply.warnings)
