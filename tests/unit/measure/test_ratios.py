"""How much better near is than far, from made-up figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from affinityd.measure.document import (
    LATENCY,
    LAUNCH,
    NOT_COMPARED,
    ONE_NODE,
    READ,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    Figure,
    ratios,
    sentence,
)
from tests.support.measurements import GPU, UNPLACED, copies, memory

TO_GPU = GPU.pci_bus_id


@pytest.mark.parametrize(
    ("figures", "quantity", "expected"),
    [
        ([copies(0, 54.0), copies(1, 30.0)], TO_DEVICE, {TO_GPU: {0: 1.0, 1: 1.8}}),
        (
            [copies(0, 10e-6, quantity=LAUNCH), copies(1, 15e-6, quantity=LAUNCH)],
            LAUNCH,
            {TO_GPU: {0: 1.0, 1: 1.5}},
        ),
        (
            [memory(0, 0, 20.0), memory(1, 0, 10.0), memory(0, 1, 8.0), memory(1, 1, 16.0)],
            READ,
            {0: {0: 1.0, 1: 2.0}, 1: {0: 2.0, 1: 1.0}},
        ),
        (
            [memory(0, 0, 1e-7, LATENCY), memory(1, 0, 2e-7, LATENCY)],
            LATENCY,
            {0: {0: 1.0, 1: 2.0}},
        ),
        # Nothing to compare with: near was not measured, or is not known, or has no CPUs.
        ([copies(0, None), copies(1, 30.0)], TO_DEVICE, {}),
        ([copies(0, 54.0, UNPLACED), copies(1, 30.0, UNPLACED)], TO_DEVICE, {}),
        ([memory(0, 8, 20.0)], READ, {}),
        ([copies(0, 0.0), copies(1, 30.0)], TO_DEVICE, {}),  # as a file may say
        ([copies(0, 54.0)], TO_DEVICE_PAGEABLE, {}),
    ],
)
def test_a_ratio_says_how_many_times_better_near_is_than_each_node(
    figures: Sequence[Figure], quantity: str, expected: Mapping[object, Mapping[int, float]]
) -> None:
    found = ratios(figures, [GPU, UNPLACED], quantity)
    assert {
        target: {node: pytest.approx(it) for node, it in its.items()}
        for target, its in expected.items()
    } == found


BOTH = [memory(0, 0, 20.0), memory(1, 0, 10.0)]


@pytest.mark.parametrize(
    ("figures", "nodes", "said"),
    [
        (
            [copies(0, 54.0), copies(1, 30.0), *BOTH],
            2,
            (
                "near is 1.8 × far for host-to-device copies from pinned memory on this node; "
                "a job that waits for nothing else gains up to 80%"
            ),
        ),
        (
            [copies(0, 54.0), copies(1, 53.0)],
            2,
            (
                "near is 1.02 × far for host-to-device copies from pinned memory on this node: "
                "they are alike"
            ),
        ),
        (
            [copies(0, 30.0), copies(1, 54.0)],
            2,
            (
                "far is 1.8 × near for host-to-device copies from pinned memory on this node: "
                "other work disturbed the measurement, or the machine reports wrong nodes"
            ),
        ),
        (
            [copies(0, None), copies(1, None), *BOTH],
            2,
            (
                "near is 2.0 × far for reading memory with one thread on this node; a job that "
                "waits for nothing else gains up to 100%; no GPU was measured"
            ),
        ),
        ([copies(1, 30.0)], 2, NOT_COMPARED),
        ([copies(0, 54.0)], 1, ONE_NODE),
    ],
)
def test_one_sentence_says_what_the_first_comparable_quantity_says(
    figures: Sequence[Figure], nodes: int, said: str
) -> None:
    assert sentence(figures, [GPU], nodes=nodes) == said
