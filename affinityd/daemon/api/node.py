"""The paths for the node, its metrics and its processes.

`GET /audit` shows processes to root and the admin group, and counts to all others.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from affinityd.audit.document import ALL, AuditDocument
from affinityd.config.settings import Settings
from affinityd.daemon.api import JSON, caller_of_request, refusals, state_of
from affinityd.daemon.api.page import HEADERS
from affinityd.daemon.api.peers import peer_of_request, reader_of
from affinityd.daemon.api.plan import DESCRIBED, NO_PLAN, NOT_READ, read_query
from affinityd.daemon.state.scans import GZIP
from affinityd.errors import InvalidRequestError, NotScannedError
from affinityd.json_codec import dumps
from affinityd.machines import BUSY
from affinityd.picture import Marks, draw, marks_of
from affinityd.request.resolve import answer
from affinityd.text import quote
from affinityd.topology.document import TopologyAnswer, to_document

router = APIRouter()


class SvgResponse(Response):
    """A picture."""

    media_type = "image/svg+xml"


@router.get(
    "/topology",
    summary="The node as it was read",
    response_model=TopologyAnswer,
    responses=NOT_READ,
)
async def topology(request: Request) -> Response:
    """Answer with the current node."""
    watcher = state_of(request).watcher
    await watcher.refresh()
    node = watcher.node
    reply = TopologyAnswer(node.generation, to_document(node.topology))
    return Response(dumps(reply), media_type=JSON)


@router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Answer with the metrics, from a thread: there may be many."""
    text = state_of(request).metrics.exposition()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/healthz", summary="The daemon runs", response_class=PlainTextResponse)
async def healthz() -> Response:
    """Answer that the daemon runs."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz",
    summary="The daemon can plan",
    response_class=PlainTextResponse,
    responses=NOT_READ,
)
async def readyz(request: Request) -> Response:
    """Answer once the node has been read. Raises NotReadyError."""
    return PlainTextResponse(f"ready: {state_of(request).watcher.node.topology.name}\n")


@router.get(
    "/topology.svg",
    summary="The node as a picture; the parameters of /plan add a plan",
    response_class=SvgResponse,
    responses=NO_PLAN,
    openapi_extra={
        "parameters": [parameter for parameter in DESCRIBED if parameter["name"] != "format"]
    },
)
async def topology_svg(request: Request) -> Response:
    """Answer with a picture of the node, or of a plan on it."""
    state = state_of(request)
    await state.watcher.refresh()
    marks = Marks(state.watcher.node.reserved)
    if request.scope["query_string"]:
        asked = await read_query(request)
        if asked.format is not None:
            raise InvalidRequestError("format: this is always SVG; leave it out")
        caller = caller_of_request(request)
        marks = marks_of(answer(state.watcher.node, asked, caller), marks.reserved)
    # A picture contains its style, but nothing that could act.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    headers = {**HEADERS, "content-security-policy": policy}
    return SvgResponse(draw(state.watcher.node.topology, marks), headers=headers)


@router.get(
    "/audit",
    summary="The processes that use GPUs, and where they may run",
    response_model=AuditDocument,
    responses=refusals(
        {
            422: "It takes no parameter.",
            503: "There has been no scan yet, or the daemon does not scan.",
        }
    ),
)
async def audit(request: Request) -> Response:
    """Answer with the last scan, limited to what the caller may see."""
    state = state_of(request)
    if query := request.scope["query_string"].decode("ascii", errors="replace"):
        raise InvalidRequestError(f"/audit takes no parameter, and was given {quote(query)}")
    reader = ALL  # everyone may see made-up processes
    if state.settings.machine != BUSY:
        reader = reader_of(peer_of_request(request.scope), state.settings.admin_group)
    last = state.last_scan()
    if last is None:
        raise _no_scan(state.settings)
    tag = f'W/"{last.boot}-{reader}"'  # weak: the compressed and the plain answer have one tag
    headers = {
        "cache-control": "no-store",
        # The browser does not give the answer to other sites' pages: Fetch,
        # Cross-Origin-Resource-Policy.
        "cross-origin-resource-policy": "same-origin",
        "etag": tag,
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:  # the page polls
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        reader += GZIP
        headers["content-encoding"] = "gzip"
    return Response(last.texts[reader], media_type=JSON, headers=headers)


def _no_scan(settings: Settings) -> NotScannedError:
    if settings.replays:
        return NotScannedError(
            f"a replayed machine has no processes to scan, but {BUSY} has recorded ones"
        )
    if settings.scan_interval is None:
        return NotScannedError("this daemon scans no processes: its scan interval is off")
    return NotScannedError("the processes have not been scanned yet; try again in a moment")
