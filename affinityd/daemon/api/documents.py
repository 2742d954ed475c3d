"""`GET /audit` and `GET /enforce`: processes, as each caller may see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from affinityd.audit.describe import Sees, everything, render
from affinityd.audit.document import AuditDocument
from affinityd.daemon.peers.connection import PeerConnection, connection_of
from affinityd.daemon.state.background import SingleFlight
from affinityd.daemon.state.scanner import Audit
from affinityd.enforce.document import EnforceDocument
from affinityd.errors import (
    InvalidRequestError,
    NotEnforcedError,
    NotReadyError,
    NotScannedError,
)
from affinityd.linux.peercred import overflow_uid
from affinityd.text import quote

T = TypeVar("T")

#: Path → its answer, in a line and as a dataclass.
DOCUMENTS: dict[str, tuple[str, type]] = {
    "/audit": ("The processes that use GPUs, and where they may run", AuditDocument),
    "/enforce": (
        "Which processes of GPU jobs are pinned, which are left alone, and why",
        EnforceDocument,
    ),
}

ROOT = 0
NOT_ENFORCING = (
    "this daemon does not enforce: start it with --enforce observe or pin, and without "
    "AFFINITYD=off"
)


@dataclass(frozen=True)
class Viewer:
    """The processes that a caller may see; with neither field, only counts."""

    is_admin: bool = False  #: all users'
    uid: int | None = None  #: of this user

    @property
    def sees(self) -> Sees | None:
        """The processes that are shown; None: only counts."""
        if self.is_admin:
            return everything
        return None if self.uid is None else lambda process: process.facts.uid == self.uid


def is_foreign(host: str) -> bool:
    """Whether a Host header has a site's name: neither an IP address nor a name without a dot.

    A site whose name resolves to an address of a user's port forwarding is asked as that user.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return "." in name
    return False


def viewer(
    connection: PeerConnection | None, admin_group: int | None, host: str = "localhost"
) -> Viewer:
    """Return the view of a caller: over TCP, from other namespaces or of a site, only counts."""
    credentials = None if connection is None else connection.credentials
    if (
        connection is None
        or credentials is None
        or credentials.pid <= 0
        or credentials.uid == overflow_uid()
        or is_foreign(host)
    ):
        return Viewer()
    if credentials.uid == ROOT or admin_group in connection.groups:
        return Viewer(is_admin=True)
    return Viewer(uid=credentials.uid)


class Documents(Generic[T]):
    """The documents of the last result; one of them is written at a time."""

    def __init__(
        self,
        render: Callable[[T, Sees | None], bytes],
        error: type[NotReadyError],
        why_none: str,
    ) -> None:
        """Take the writer of a document, and the error to raise before the first result."""
        self._write: SingleFlight[tuple[T, Viewer], bytes] = SingleFlight(
            lambda asked: render(asked[0], asked[1].sees) + b"\n"
        )
        self._why_none = why_none
        self._error = error
        self.found: T | None = None

    def update(self, found: T) -> None:
        """Describe this from now on."""
        self.found = found

    async def document(self, reader: Viewer) -> bytes:
        """Return a viewer's document, as JSON. Raises NotReadyError if there is none yet."""
        if self.found is None:
            raise self._error(self._why_none)
        return await self._write((self.found, reader))


def audit_documents(why_none: str) -> Documents[Audit]:
    """Return the documents of the last audit."""
    return Documents(
        lambda audit, sees: render(audit.topology, audit.scan, sees), NotScannedError, why_none
    )


def add_document(
    app: FastAPI,
    path: str,
    documents: Documents[Any] | None,
    admin_group: int | None,
    errors: dict[int | str, Any],
) -> None:
    """Answer one of DOCUMENTS; None: of a daemon that does not enforce.

    `errors`: its refusals, for OpenAPI.
    """
    summary, kind = DOCUMENTS[path]

    @app.get(path, name=path[1:], summary=summary, responses={**errors, 200: {"model": kind}})
    async def document(request: Request) -> Response:
        if query := request.scope["query_string"].decode("ascii", errors="replace"):
            raise InvalidRequestError(f"{path} takes no parameters, and was given {quote(query)}")
        if documents is None:
            raise NotEnforcedError(NOT_ENFORCING)
        host = request.headers.get("host", "")
        body = await documents.document(viewer(connection_of(request.scope), admin_group, host))
        return Response(body, media_type="application/json")
