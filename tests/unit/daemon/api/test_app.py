"""What `GET /audit` answers, and to whom; a bug reaches a client as one line."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest

from affinityd.audit.document import AuditDocument
from affinityd.daemon.api.app import Documents, create_app
from affinityd.daemon.api.peers import Callers, Peer, Viewer, viewer
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.plan_service import Answer, PlanService
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.errors import NotScannedError
from affinityd.linux.processes import Credentials
from affinityd.topology.model import Node
from tests.support.documents import exactly
from tests.support.machines.facts import machine
from tests.support.scans import Audit, audit, process, scanned
from tests.unit.daemon.state.test_topology_watcher import StandIn

ADMINS = 500
ALL, OWN, COUNTS = Viewer(is_admin=True), Viewer(uid=7), Viewer()


def peer(uid: int, *groups: int, pid: int = 10) -> Peer:
    connection = Peer.__new__(Peer)
    connection.credentials = Credentials(pid, uid, 0)
    connection.groups = frozenset(groups)
    return connection


@pytest.mark.parametrize(
    ("peer", "admin_group", "sees"),
    [
        (peer(0, 0), None, ALL),
        (peer(7, 7), None, OWN),
        (peer(7, 7, ADMINS), ADMINS, ALL),
        (peer(7, 7), ADMINS, OWN),
        (peer(7, 0), None, OWN),  # root's group is none of the admins' unless that is said
        (peer(7, 0), 0, ALL),
        (peer(0, 0, pid=0), None, COUNTS),  # of another pid namespace
        (peer(65534, ADMINS), ADMINS, COUNTS),  # of another user namespace
        (None, ADMINS, COUNTS),  # over TCP
    ],
)
def test_who_sees_what(peer: Peer | None, admin_group: int | None, sees: Viewer) -> None:
    assert viewer(peer, admin_group) == sees


@pytest.mark.parametrize(
    ("host", "sees"),
    [
        *((name, ALL) for name in ("localhost", "localhost:9465", "127.0.0.1:9465", "[::1]:9465")),
        *((name, ALL) for name in ("", "::1", "node7", "unix")),
        *((name, COUNTS) for name in ("a.site", "a.site:9465", "127.0.0.1.a.site")),
    ],
)
def test_a_site_whose_name_leads_to_the_socket_sees_only_counts(host: str, sees: Viewer) -> None:
    assert viewer(peer(0, 0), None, host) == sees


FOUND = audit(process(1, uid=7), process(2, uid=8), process(3, uid=None))


def documents_of(*audits: Audit) -> Documents:
    scanning, results = scanned(*audits)
    documents = Documents(
        lambda reader: scanning.document("/audit", **asdict(reader)), NotScannedError, "none yet"
    )
    for result in results:
        documents.update(result.boot)
    return documents


def pids(body: bytes) -> list[int] | None:
    answer = json.loads(body)
    return [it["pid"] for it in answer["processes"]] if "processes" in answer else None


@pytest.mark.parametrize(
    ("who", "sees", "shown"),
    [
        (ALL, "all", [1, 2, 3]),
        (OWN, "own", [1]),
        (Viewer(uid=9), "own", []),
        (COUNTS, "counts", None),
    ],
)
async def test_the_document_shows_those_processes_and_counts_all(
    who: Viewer, sees: str, shown: list[int] | None
) -> None:
    body = await documents_of(FOUND).document(who)
    answer = exactly(AuditDocument, body)
    assert (answer.sees, pids(body)) == (sees, shown)
    assert (answer.gpus[0].processes or {})["local"] == 3


async def test_before_the_first_scan_it_is_said_why_there_is_none() -> None:
    with pytest.raises(NotScannedError, match="none yet"):
        await documents_of().document(ALL)


async def test_a_document_is_of_the_scan_that_was_the_last_when_it_was_asked_for() -> None:
    scans = ["first", "second"]
    documents = Documents(
        lambda reader: f"{scans.pop(0)} of {reader.uid}".encode(), NotScannedError, ""
    )
    documents.update(1.0)
    before = asyncio.create_task(documents.document(OWN))
    await asyncio.sleep(0)  # it is being written
    documents.update(2.0)
    after = await documents.document(OWN)
    assert (await before, after) == (b"first of 7\n", b"second of 7\n")


class Broken(PlanService):
    """A service with a bug."""

    def answer(self, *_: object, **__: object) -> Answer:
        raise RuntimeError("a bug: it is so")


@pytest.mark.parametrize("accept", [b"*/*", b"text/plain"])
async def test_a_bug_is_a_500_of_one_line(accept: bytes) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:  # noqa: ANN401 - as ASGI has it
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    service = Broken(Node(machine("dgx-h100")))
    watcher = TopologyWatcher(service, StandIn(), reserved=frozenset(), on_read=lambda: None)
    metrics = Metrics(lambda: service.known)
    app = create_app(service, watcher, metrics, Callers(), {})
    scope = {"type": "http", "method": "GET", "path": "/plan", "query_string": b"gpus=0"}
    with pytest.raises(RuntimeError, match="a bug"):
        await app({**scope, "headers": [(b"accept", accept)]}, receive, send)
    start, body = sent
    text = body["body"].decode()
    assert (start["status"], text.count("\n"), "it is so" in text) == (500, 1, False)
    title = text.partition(":")[0] if accept == b"text/plain" else json.loads(text)["title"]
    assert title == "Internal error"
