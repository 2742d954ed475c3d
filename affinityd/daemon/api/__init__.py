"""The HTTP API: the state from which its paths answer, and its refusals in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter
from starlette.requests import Request

from affinityd.config.settings import Settings
from affinityd.daemon.api.peers import caller_of, peer_of_request
from affinityd.daemon.metrics import Metrics
from affinityd.daemon.state.scans import ScanResult
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.request.document import ProblemDocument
from affinityd.request.resolve import Caller

JSON = "application/json"
TEXT = "text/plain"
PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class ApiState:
    """One daemon's node, its metrics, and its last scan."""

    settings: Settings
    watcher: TopologyWatcher
    metrics: Metrics
    last_scan: Callable[[], ScanResult | None]


def state_of(request: Request) -> ApiState:
    """Return the state of the app that received a request."""
    return cast("ApiState", request.app.state.api)


def caller_of_request(request: Request) -> Caller | None:
    """Return the CPUs of the requesting process; None if unknown, or if the machine is replayed."""
    if state_of(request).settings.replays:
        return None
    return caller_of(peer_of_request(request.scope))


def refusals(meanings: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return the refusals for OpenAPI; `meanings`: HTTP status → what it means."""
    content = {
        PROBLEM: {"schema": TypeAdapter(ProblemDocument).json_schema()},
        TEXT: {"schema": {"type": "string"}},
    }
    return {
        status: {"description": meaning, "content": content} for status, meaning in meanings.items()
    }
