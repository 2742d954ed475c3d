"""What is found of processes, as documents for those who may see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from affinityd.audit.document import Sees, everything
from affinityd.daemon.peers.connection import Peer, peer_of_request
from affinityd.daemon.state.background import SingleFlight
from affinityd.daemon.state.cache import Cache
from affinityd.errors import InvalidRequestError
from affinityd.text import quote

T = TypeVar("T")

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


class Told(Protocol):
    """Who has documents."""

    async def document(self, for_whom: Viewer) -> bytes:
        """Return what somebody may see, as JSON. Raises NotReadyError where there is nothing."""


class Documents(Generic[T]):
    """The documents of what was found last, each written once."""

    def __init__(self, last: Callable[[], T], render: Callable[[T, Sees | None], bytes]) -> None:
        """Take what was found last, which may raise NotReadyError, and what writes a document."""
        self._last = last
        self._render = render
        self._of: T | None = None
        self._kept: Cache[Viewer, bytes] = Cache(MAX_BYTES)
        self._write: SingleFlight[tuple[T, Viewer], bytes] = SingleFlight(self._written)

    async def document(self, for_whom: Viewer) -> bytes:
        """Return what somebody may see, as JSON. Raises NotReadyError where there is nothing."""
        found = self._last()
        if found is not self._of:
            self._of = found
            self._kept.clear()
        body = self._kept.get(for_whom)
        if body is None:
            body = await self._write((found, for_whom))
            if found is self._of:  # nothing else was found meanwhile
                self._kept.put(for_whom, body, len(body))
        return body

    def _written(self, asked: tuple[T, Viewer]) -> bytes:
        found, for_whom = asked
        return self._render(found, for_whom.sees) + b"\n"


async def answer(request: Request, told: Told, admin_group: int | None) -> Response:
    """Answer with the caller's document. Raises InvalidRequestError for parameters: it has none."""
    if query := request.scope["query_string"].decode("ascii", errors="replace"):
        path = request.scope["path"]
        raise InvalidRequestError(f"{path} takes no parameters, and was given {quote(query)}")
    body = await told.document(viewer(peer_of_request(request.scope), admin_group))
    return Response(body, media_type="application/json")
