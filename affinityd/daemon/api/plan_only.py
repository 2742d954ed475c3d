"""The address for plans only: it answers /plan, and / names it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from affinityd.daemon.api.problems import problem
from affinityd.text import quote

LISTED = """\
affinityd answers only plans at this address.

GET /plan  The CPUs of each rank, as in /plan?gpus=0,1&mode=node
"""


class PlanOnly:
    """Passes only requests for /plan on to the app."""

    def __init__(self, app: ASGIApp) -> None:
        """Take the app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        if scope["path"] == "/plan":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}:
            await PlainTextResponse(LISTED)(scope, receive, send)
            return
        asked = quote(scope["path"])
        detail = f"{scope['method']} {asked} is not answered at this address; only GET /plan is"
        answer = problem(Request(scope), 404, "Not Found", detail)
        await answer(scope, receive, send)
