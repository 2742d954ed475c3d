"""`GET /audit` and `GET /enforce`: processes, as each caller may see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from affinityd.daemon.peers import Viewer, peer_of_request, viewer
from affinityd.daemon.state.background import SingleFlight
from affinityd.errors import (
    InvalidRequestError,
    NotEnforcedError,
    NotReadyError,
)
from affinityd.text import quote

T = TypeVar("T")

#: Path → its answer, in a line.
DOCUMENTS = {
    "/audit": "The processes that use GPUs, and where they may run",
    "/enforce": "Which processes of GPU jobs are pinned, which are left alone, and why",
}

#: A browser keeps them out of other sites' pages: Fetch, Cross-Origin-Resource-Policy.
HEADERS = {"cross-origin-resource-policy": "same-origin", "x-content-type-options": "nosniff"}
NOT_ENFORCING = (
    "this daemon does not enforce: start it with --enforce observe or pin, and without "
    "AFFINITYD=off"
)


class Documents(Generic[T]):
    """The documents of the last result; one of them is written at a time."""

    def __init__(
        self,
        write: Callable[[T, Viewer], bytes],
        error: type[NotReadyError],
        why_none: str,
    ) -> None:
        """Take the writer of a document, and the error to raise before the first result."""
        self._write: SingleFlight[tuple[T, Viewer], bytes] = SingleFlight(
            lambda asked: write(*asked) + b"\n"
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

    @app.get(path, name=path[1:], summary=DOCUMENTS[path], responses=errors)
    async def document(request: Request) -> Response:
        if query := request.scope["query_string"].decode("ascii", errors="replace"):
            raise InvalidRequestError(f"{path} takes no parameters, and was given {quote(query)}")
        if documents is None:
            raise NotEnforcedError(NOT_ENFORCING)
        host = request.headers.get("host", "")
        body = await documents.document(viewer(peer_of_request(request.scope), admin_group, host))
        return Response(body, media_type="application/json", headers=HEADERS)
