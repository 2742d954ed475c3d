"""What a daemon that enforces cannot see, or do, and says; and what its site's settings mean."""

from __future__ import annotations

import pytest

from affinityd.cpuset import parse_list
from affinityd.daemon.enforcement import site
from affinityd.enforce.enforcer import NO_ENVIRONMENTS, notices, outcomes
from affinityd.enforce.model import PinOutcome
from affinityd.enforce.policy.model import Treatment
from affinityd.errors import InvalidRequestError
from affinityd.planner.model import Options

GPU0, GPU1, OTHER = ("nvidia", 0), ("nvidia", 1), ("amd", 0)


def test_what_cannot_be_seen_is_said() -> None:
    assert not [*notices({}, is_blind=False, refusal=None)]
    unknown = {GPU1: "no NVML", GPU0: "no NVML", OTHER: "no KFD"}
    assert [*notices(unknown, is_blind=True, refusal="memory was not moved")] == [
        NO_ENVIRONMENTS,
        "memory was not moved",
        "the processes of amd GPU 0 are not known: no KFD",
        "the processes of nvidia GPUs 0-1 are not known: no NVML",
    ]


ONE = parse_list("1")


@pytest.mark.parametrize(
    ("outcome", "names"),
    [
        (PinOutcome(pinned=3), ["pinned"]),
        (PinOutcome(pinned=3, refused=1, cut=ONE, is_settled=False), ["refused"]),
        (PinOutcome(pinned=3, cut=ONE, is_settled=False), ["cut"]),
        (PinOutcome(pinned=3, is_settled=False), ["unsettled"]),
        (PinOutcome(is_settled=False), ["unsettled"]),
        (PinOutcome(), []),
        (PinOutcome(is_gone=True, is_settled=False), []),
    ],
)
def test_a_pin_is_counted_once(outcome: PinOutcome, names: list[str]) -> None:
    assert outcomes(outcome) == names


def test_what_a_policy_does_not_say_is_what_exec_and_the_prolog_have() -> None:
    names = ("MODE", "SCOPE", "MIN_PHYSICAL_CORES", "BALANCED", "STRICT", "SOCKET")
    texts = ("unique-contiguous", "socket", "2", "false", "true", "/x")
    said = {f"AFFINITYD_{name}": text for name, text in zip(names, texts, strict=True)}
    unique = Options("unique_contiguous", scope="socket", min_physical_cores=2, balanced=False)
    assert site(said).options == unique
    assert site({}) == Treatment()
    assert site({"AFFINITYD_SCOPE": "socket"}).options == Options("all", scope="socket")
    with pytest.raises(InvalidRequestError, match="mode: 'nod'"):
        site({"AFFINITYD_MODE": "nod"})
