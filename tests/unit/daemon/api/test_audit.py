"""What `GET /audit` answers, and to whom."""

from __future__ import annotations

import asyncio
import json

import pytest

from affinityd.audit.document import AuditDocument
from affinityd.daemon.api.documents import Documents, Viewer, audit_documents, viewer
from affinityd.daemon.peers.connection import PeerConnection
from affinityd.daemon.state.scanner import Audit
from affinityd.errors import NotScannedError
from affinityd.linux.peercred import Credentials
from tests.support.documents import exactly
from tests.support.scans import audit, process

ADMINS = 500

EVERYBODYS, NOBODYS = Viewer(is_admin=True), Viewer()


def peer(uid: int, *groups: int, pid: int = 10) -> PeerConnection:
    """Return a connection of a process of these numbers."""
    connection = PeerConnection.__new__(PeerConnection)
    connection.credentials = Credentials(pid, uid, 0)
    connection.groups = frozenset(groups)
    return connection


@pytest.mark.parametrize(
    ("peer", "admin_group", "sees"),
    [
        pytest.param(peer(0, 0), None, EVERYBODYS, id="root sees all"),
        pytest.param(peer(7, 7), None, Viewer(uid=7), id="a user sees his own"),
        pytest.param(peer(7, 7, ADMINS), ADMINS, EVERYBODYS, id="so does the admins' group"),
        pytest.param(peer(7, 7), ADMINS, Viewer(uid=7), id="but no other group"),
        pytest.param(peer(7, 0), None, Viewer(uid=7), id="nor root's group unless it is said"),
        pytest.param(peer(7, 0), 0, EVERYBODYS, id="which it may be"),
        pytest.param(peer(0, 0, pid=0), None, NOBODYS, id="of another pid namespace: counts"),
        pytest.param(peer(65534, ADMINS), ADMINS, NOBODYS, id="of another user namespace: counts"),
        pytest.param(None, ADMINS, NOBODYS, id="over TCP: counts"),
    ],
)
def test_who_sees_what(peer: PeerConnection | None, admin_group: int | None, sees: Viewer) -> None:
    assert viewer(peer, admin_group) == sees


FOUND = audit(process(1, uid=7), process(2, uid=8), process(3, uid=None))
LATER = audit(process(4, uid=7))


@pytest.mark.parametrize(
    ("who", "sees", "pids"),
    [
        (EVERYBODYS, "all", [1, 2, 3]),
        (Viewer(uid=7), "own", [1]),
        (Viewer(uid=9), "own", []),
        (NOBODYS, "counts", None),
    ],
)
def test_the_document_shows_those_processes_and_counts_all(
    who: Viewer, sees: str, pids: list[int] | None
) -> None:
    body = asyncio.run(seen(FOUND).document(who))
    answer = exactly(AuditDocument, body)
    assert answer.sees == sees
    shown = None if answer.processes is None else [process.pid for process in answer.processes]
    assert shown == pids
    assert ("processes" in json.loads(body)) == (pids is not None)
    assert (answer.gpus[0].processes or {})["local"] == 3


def test_before_the_first_scan_it_is_said_why_there_is_none() -> None:
    with pytest.raises(NotScannedError, match="none yet"):
        asyncio.run(audit_documents("none yet").document(EVERYBODYS))


def test_a_document_is_of_the_scan_before_which_it_was_asked_for_and_the_next_of_the_next() -> None:
    async def story() -> None:
        documents, user = seen(FOUND), Viewer(uid=7)
        before = asyncio.create_task(documents.document(user))
        await asyncio.sleep(0)  # it is being written
        documents.update(LATER)
        await documents.document(NOBODYS)
        assert pids(await before) == [1]
        assert pids(await documents.document(user)) == [4]

    asyncio.run(story())


def seen(audit: Audit) -> Documents[Audit]:
    documents = audit_documents("")
    documents.update(audit)
    return documents


def pids(body: bytes) -> list[int]:
    return [process["pid"] for process in json.loads(body)["processes"]]
