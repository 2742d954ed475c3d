"""Bytes from a container runtime, and from kubelet: read, or refused as ValueError alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hypothesis import given
from hypothesis import strategies as st

from affinityd.config.settings import Settings
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.state.plan_service import PlanService
from affinityd.kubernetes.nri import messages
from affinityd.kubernetes.nri.messages import PLUGIN, REQUEST, Trunk, Ttrpc, packed
from affinityd.kubernetes.nri.session import reply
from affinityd.kubernetes.pods import containers
from affinityd.linux.protobuf import field, read
from affinityd.topology.model import Node
from tests.e2e.fuzz.inputs import MANY, SOME, damaged
from tests.support.nri import created
from tests.support.tiny import tiny

REQUESTS = (created(), created(cgroup="kubepods-pod1.slice", env=["A=b"], quota=100000, cpus="0"))
BYTES = st.binary(max_size=64) | st.sampled_from(REQUESTS).flatmap(damaged)
PARTS = packed(Ttrpc(PLUGIN, 1, REQUEST, REQUESTS[1]))
ASKED = field(1, "nri.pkg.api.v1alpha1.Plugin") + field(2, "CreateContainer")


@given(BYTES)
@MANY
def test_no_bytes_are_more_than_a_wrong_message(data: bytes) -> None:
    for reader in (read, messages.created, containers):
        with suppress(ValueError):
            reader(data)


@given(st.lists(st.binary(max_size=20) | damaged(PARTS), max_size=5))
@MANY
def test_no_parts_are_more_than_too_long(parts: list[bytes]) -> None:
    trunk = Trunk()
    with suppress(ValueError):
        for part in parts:
            trunk.received(part)


@given(BYTES, BYTES)
@SOME
def test_no_request_is_answered_with_an_error(payload: bytes, request: bytes) -> None:
    rules = Settings(nri="/nonexistent", nri_namespaces=frozenset("*"))
    plugin = NriPlugin(rules, PlanService(Node(tiny())))
    answers = {"CreateContainer": plugin._create_container}
    for asked in (ASKED + field(3, payload), request):
        assert set(read(reply(asked, answers, quietly))) == {2}  # a payload, and no status


@contextmanager
def quietly() -> Iterator[None]:
    with suppress(Exception):
        yield
