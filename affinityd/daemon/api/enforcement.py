"""`GET /enforce`: what is pinned from outside, and why not what is not."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from affinityd.daemon.api.documents import Told, Viewer, answer
from affinityd.daemon.api.enforcement_schemas import EnforceAnswer
from affinityd.errors import NotEnforcedError


class NotEnforcing:
    """Of a daemon that pins nothing from outside, and does not look what it would pin."""

    async def document(self, _for_whom: Viewer) -> bytes:
        """Raise NotEnforcedError."""
        raise NotEnforcedError(
            "this daemon does not enforce: start it with --enforce observe or pin, and without "
            "AFFINITYD=off"
        )


NOT_ENFORCING = NotEnforcing()


def enforce_route(told: Told, admin_group: int | None, errors: dict[int | str, Any]) -> APIRouter:
    """Return the route; `errors` are what FastAPI is told of its refusals."""
    router = APIRouter()

    @router.get(
        "/enforce",
        summary="Which processes of GPU jobs are pinned from outside, and which are left, and why",
        responses={**errors, 200: {"model": EnforceAnswer}},
    )
    async def enforce(request: Request) -> Response:
        return await answer(request, told, admin_group)

    return router
