"""What a daemon that enforces cannot see, or do, and says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from affinityd.audit.model import GpuKey
from affinityd.daemon.enforcement import site
from affinityd.enforce.enforcer import notices
from affinityd.enforce.policy.identity import ProcessIdentity
from affinityd.enforce.policy.model import Treatment
from affinityd.errors import InvalidRequestError
from tests.support.audit_facts import KUBERNETES_POD
from tests.support.enforced_node import Site, rank
from tests.support.machines.by_hand import made

GPU0, GPU1, OTHER = ("nvidia", 0), ("nvidia", 1), ("amd", 0)


@pytest.mark.parametrize(
    ("unknown", "is_blind", "refusal", "begin"),
    [
        pytest.param({}, False, None, [], id="nothing"),
        pytest.param({}, True, None, ["the environment of"], id="an environment"),
        pytest.param({}, False, "memory was not moved", ["memory was not"], id="a refusal"),
        pytest.param(
            {GPU1: "no NVML", GPU0: "no NVML", OTHER: "no KFD"},
            False,
            None,
            [
                "nothing is known of the processes of amd GPU 0: no KFD",
                "nothing is known of the processes of nvidia GPUs 0-1: no NVML",
            ],
            id="GPUs by why they are not seen",
        ),
    ],
)
def test_what_cannot_be_seen_is_said(
    unknown: Mapping[GpuKey, str], is_blind: bool, refusal: str | None, begin: list[str]
) -> None:
    said = list(notices(unknown, is_blind=is_blind, refusal=refusal))
    assert len(said) == len(begin)
    assert all(text.startswith(start) for text, start in zip(said, begin, strict=True))


def test_what_a_policy_does_not_say_is_what_exec_and_the_prolog_have() -> None:
    said = {
        "AFFINITYD_MODE": "unique-contiguous",
        "AFFINITYD_SCOPE": "socket",
        "AFFINITYD_MIN_PHYSICAL_CORES": "2",
        "AFFINITYD_BALANCED": "false",
        "AFFINITYD_STRICT": "true",
        "AFFINITYD_SOCKET": "/x",
    }
    its = site(said).options
    assert (its.mode, its.scope, its.share, its.min_physical_cores) == (
        "unique_contiguous",
        "socket",
        "auto",
        2,
    )
    assert (its.balanced, its.strict) == (False, False)
    assert site({}) == Treatment()


def test_a_scope_alone_is_that_of_all_its_cores_as_exec_has_it() -> None:
    its = site({"AFFINITYD_SCOPE": "socket"}).options
    assert (its.mode, its.scope) == ("all", "socket")


def test_a_mode_of_the_site_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="mode: 'nod'"):
        site({"AFFINITYD_MODE": "nod"})


def test_a_pod_is_called_by_its_name() -> None:
    facts = replace(rank("0-7", membership=KUBERNETES_POD))
    about = ProcessIdentity(namespace="ml", pod="train-0")
    machine = made({0: "0-3", 1: "4-7"}, gpus=[0, 1])
    (decision,) = Site(machine, identities={100: about}).look(facts)
    assert decision.pod == "ml/train-0"
