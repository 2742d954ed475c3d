"""The FastAPI app: its paths and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from affinityd import __version__
from affinityd.daemon.api import problems
from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.api.description import add_description, listed
from affinityd.daemon.api.documents import Documents, add_document
from affinityd.daemon.api.page.routes import PICTURE_HEADERS, SVG, add_page
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.state.background import SingleFlight
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.json_codec import dumps
from affinityd.picture import Marks, draw, marks_of
from affinityd.request.devices import names_unknown_mig
from affinityd.request.environment import ENV
from affinityd.request.parameters import PARAMETERS
from affinityd.request.parameters import Request as PlanRequest
from affinityd.request.query import VARIABLE, parse_query
from affinityd.request.resolve import first_answer
from affinityd.text import quote
from affinityd.topology.document import TopologyAnswer, to_document

MAX_FIELDS = 64

_PARAMETERS = [
    {
        "name": name,
        "in": "query",
        "description": parameter.help,
        "schema": parameter.schema,
        "allowEmptyValue": parameter.may_be_empty,
    }
    for name, parameter in {**PARAMETERS, ENV: VARIABLE}.items()
]
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": _TEXT,
    }
    for status, text in (
        (404, "No such GPU, or none visible; says which exist."),
        (409, "Cannot be satisfied; says what could be."),
        (422, "A parameter is unknown, repeated, empty or malformed."),
        (503, "The machine has not been read yet."),
    )
}

_NO_DOCUMENT: dict[int | str, dict[str, Any]] = {
    422: {**_ERRORS[422], "description": "It takes no parameters."},
    503: {
        **_ERRORS[503],
        "description": "There has been no scan yet, or the daemon does not scan.",
    },
}


def create_app(
    service: PlanService,
    watcher: TopologyWatcher,
    metrics: Metrics,
    answers: AnswerCache,
    documents: Mapping[str, Documents[Any] | None],
    *,
    admin_group: int | None = None,
    socket: str = "",
) -> FastAPI:
    """Return the ASGI app that answers on one node; `documents` are by their path.

    `socket` is the path of the daemon's, for people.
    """
    app = FastAPI(
        title="affinityd",
        version=__version__,
        description="The CPUs and the memory node for each GPU rank.",
        # Their pages would load scripts from elsewhere, which a compute node cannot reach.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI's own would be made on the event loop
        redirect_slashes=False,  # a redirect would name the request's host, which may be any
    )
    problems.install(app)
    add_page(app, service, refresh=watcher.refresh, listed=lambda: listed(app), socket=socket)
    _add_plan(app, service, watcher, metrics, answers)
    _add_node(app, service, watcher, metrics)
    _add_picture(app, service, watcher, answers)
    for path, source in documents.items():
        add_document(app, path, source, admin_group, _NO_DOCUMENT)
    add_description(app)
    return app


def _add_plan(
    app: FastAPI,
    service: PlanService,
    watcher: TopologyWatcher,
    metrics: Metrics,
    answers: AnswerCache,
) -> None:
    @app.get(
        "/plan",
        summary="The CPUs of each rank",
        responses={**_ERRORS, 200: {"content": _TEXT}},
        openapi_extra={"parameters": _PARAMETERS},
    )
    async def plan(request: Request) -> Response:
        await watcher.first_reading()
        began, mode = perf_counter(), ""
        try:
            requests = parse_query(_pairs(request.scope["query_string"]))
            mode = requests[0].options.mode
            await _bring_up_to_date(service, watcher, requests[0])
            caller = answers.callers.of_request(request.scope)
            kind = _format(requests[0], request)
            answer = service.answer(requests, kind, caller)
        except AffinityError as error:
            metrics.refused(mode, error.status)
            raise
        answers.remember(request.scope, answer)
        metrics.planned(answer, perf_counter() - began)
        return Response(answer.body, headers={"content-type": answer.media_type})

    _shorten(app, "/plan", plan)


def _shorten(app: FastAPI, path: str, answer: Callable[[Request], Awaitable[Response]]) -> None:
    """Have a route call its function at once: FastAPI's way to parameters takes as long as a plan.

    The route describes the function in OpenAPI as before, and errors are answered as before.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        response = await answer(Request(scope, receive))
        await response(scope, receive, send)

    (route,) = (it for it in app.routes if isinstance(it, APIRoute) and it.path == path)
    route.app = call


def _add_node(
    app: FastAPI, service: PlanService, watcher: TopologyWatcher, metrics: Metrics
) -> None:
    exposition = SingleFlight(metrics.exposition)

    @app.get("/topology", summary="The node as it was read", responses={503: _ERRORS[503]})
    async def topology() -> Response:
        await watcher.refresh()
        node = service.node
        answer = TopologyAnswer(node.generation, to_document(node.topology))
        return Response(dumps(answer), media_type="application/json")

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {"application/openmetrics-text": _TEXT["text/plain"]}}},
    )
    async def scrape(request: Request) -> Response:
        body, media_type = await exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    @app.get("/healthz", summary="The daemon runs", response_class=PlainTextResponse)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get(
        "/readyz",
        summary="The daemon can plan",
        response_class=PlainTextResponse,
        responses={503: _ERRORS[503]},
    )
    async def readyz() -> Response:
        return Response(f"ready: {service.node.topology.name}\n", media_type="text/plain")


def _add_picture(
    app: FastAPI, service: PlanService, watcher: TopologyWatcher, answers: AnswerCache
) -> None:
    @app.get(
        "/topology.svg",
        summary="The node as a picture, with the parameters of /plan also a plan",
        response_class=Response,
        responses={**_ERRORS, 200: {"content": {SVG: {"schema": {"type": "string"}}}}},
        openapi_extra={"parameters": [it for it in _PARAMETERS if it["name"] != "format"]},
    )
    async def picture(request: Request) -> Response:
        await watcher.refresh()
        marks = Marks(service.node.reserved)
        if query := request.scope["query_string"]:
            requests = parse_query(_pairs(query))
            if requests[0].format is not None:
                raise InvalidRequestError("format: this is always SVG; leave it out")
            await _bring_up_to_date(service, watcher, requests[0])
            caller = answers.callers.of_request(request.scope)
            reply = first_answer(service.node, requests, caller)
            marks = marks_of(reply, service.node.reserved)
        svg = draw(service.node.topology, marks)
        return Response(svg, media_type=SVG, headers=PICTURE_HEADERS)


async def _bring_up_to_date(
    service: PlanService, watcher: TopologyWatcher, asked: PlanRequest
) -> None:
    await watcher.refresh()
    texts = (*(asked.gpus or ()), asked.granted, asked.nvidia_visible, asked.visible)
    if names_unknown_mig(service.node.topology, *texts):
        await watcher.seek_mig()


def _pairs(query: bytes) -> list[tuple[str, str]]:
    """Read a query string. Raises InvalidRequestError if it is not percent-encoded UTF-8."""
    if not query:
        return []
    try:
        text = query.decode("ascii")
        if bad := next((part for part in text.split("&") if "=" not in part), None):
            raise InvalidRequestError(f"{quote(bad)} has no value; write NAME=VALUE")
        return parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise InvalidRequestError(
            "the query string cannot be read; write it like gpus=0,1&mode=node, at most "
            f"{MAX_FIELDS} parameters, percent-encoded as UTF-8"
        ) from None


def _format(asked: PlanRequest, request: Request) -> str:
    if asked.format is not None:
        return asked.format
    return "cpulist" if problems.wants_text(request.headers.get("accept")) else "json"
