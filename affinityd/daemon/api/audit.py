"""`GET /audit`: the processes that use GPUs, for those who may see them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from affinityd.audit.document import Sees, render
from affinityd.daemon.api import schemas
from affinityd.daemon.api.documents import Documents, answer
from affinityd.daemon.state.scanner import Audit, LatestAudit


def audit_route(
    audits: LatestAudit, admin_group: int | None, errors: dict[int | str, Any]
) -> APIRouter:
    """Return the route; `errors` are what FastAPI is told of its refusals."""
    router = APIRouter()
    documents = documents_of(audits)

    @router.get(
        "/audit",
        summary="The processes that use GPUs, and where they may run",
        responses={**errors, 200: {"model": schemas.AuditAnswer}},
    )
    async def audit(request: Request) -> Response:
        return await answer(request, documents, admin_group)

    return router


def documents_of(audits: LatestAudit) -> Documents[Audit]:
    """Return the documents of what was seen last."""
    return Documents(lambda: audits.audit, _rendered)


def _rendered(audit: Audit, sees: Sees | None) -> bytes:
    return render(audit.topology, audit.scan, sees)
