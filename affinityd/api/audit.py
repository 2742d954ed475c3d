"""`GET /audit`: the processes that use GPUs, for those who may see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from affinityd.api import wire
from affinityd.api.peer import Peer, peer_of_request
from affinityd.audit.document import Sees, everything, render
from affinityd.background import Shared
from affinityd.cache import Cache
from affinityd.errors import InvalidRequestError, quote
from affinityd.scanner import Audit, Audits

ROOT = 0
MAX_BYTES = 16 * 1024 * 1024  #: of one scan's documents, kept for those who ask again


@dataclass(frozen=True)
class Viewer:
    """Whose processes somebody may see: with neither, none by itself, but counts."""

    is_admin: bool = False  #: everybody's
    uid: int | None = None  #: this user's

    @property
    def sees(self) -> Sees | None:
        """Which processes are shown; None: counts alone."""
        if self.is_admin:
            return everything
        return None if self.uid is None else lambda process: process.facts.uid == self.uid


def viewer(peer: Peer | None, admin_group: int | None) -> Viewer:
    """Return what a caller may see; it has no peer where it came over TCP."""
    if peer is None or not peer.is_of_ours:
        return Viewer()
    if peer.uid == ROOT or admin_group in peer.groups:
        return Viewer(is_admin=True)
    return Viewer(uid=peer.uid)


class Documents:
    """The last scan's documents, each written once."""

    def __init__(self) -> None:
        self._of: Audit | None = None
        self._kept: Cache[Viewer, bytes] = Cache(MAX_BYTES)
        self._write: Shared[tuple[Audit, Viewer], bytes] = Shared(_written)

    async def document(self, audit: Audit, for_whom: Viewer) -> bytes:
        """Return what somebody may see of an audit, as JSON."""
        if audit is not self._of:
            self._of = audit
            self._kept.clear()
        body = self._kept.get(for_whom)
        if body is None:
            body = await self._write((audit, for_whom))
            if audit is self._of:  # there has been no scan meanwhile
                self._kept.put(for_whom, body, len(body))
        return body


def audit_route(audits: Audits, admin_group: int | None, errors: dict[int | str, Any]) -> APIRouter:
    """Return the route; `errors` are what FastAPI is told of its refusals."""
    router = APIRouter()
    documents = Documents()

    @router.get(
        "/audit",
        summary="The processes that use GPUs, and where they may run",
        responses={**errors, 200: {"model": wire.AuditAnswer}},
    )
    async def audit(request: Request) -> Response:
        if query := request.url.query:
            raise InvalidRequestError(f"/audit takes no parameters, and was given {quote(query)}")
        for_whom = viewer(peer_of_request(request.scope), admin_group)
        body = await documents.document(audits.audit, for_whom)
        return Response(body, media_type="application/json")

    return router


def _written(asked: tuple[Audit, Viewer]) -> bytes:
    audit, for_whom = asked
    return render(audit.topology, audit.scan, for_whom.sees) + b"\n"
