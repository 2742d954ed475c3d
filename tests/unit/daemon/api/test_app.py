"""Answers of `GET /audit` by caller; a bug reaches a client as one line."""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from starlette.types import ASGIApp

from affinityd.audit.document import ALL, COUNTS
from affinityd.config.settings import Settings
from affinityd.daemon.api import ApiState, peers, plan
from affinityd.daemon.api.app import MOST_IN_TURN, whole_app
from affinityd.daemon.api.peers import KEY, Peer, reader_of
from affinityd.daemon.metrics import Metrics
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.linux.processes import Credentials
from affinityd.request.resolve import Reply
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.unit.daemon.state.test_topology_watcher import FEWER, StandIn

ADMINS = 500


def peer(uid: int, *groups: int, pid: int = os.getpid()) -> Peer:
    connection = Peer.__new__(Peer)
    connection.credentials = Credentials(pid, uid, 0)
    connection.groups = frozenset(groups)
    connection.start = peers._start(pid)
    return connection


@pytest.mark.parametrize(
    ("peer", "admin_group", "sees"),
    [
        (peer(0, 0), None, ALL),
        (peer(7, 7), None, COUNTS),
        (peer(7, 7, ADMINS), ADMINS, ALL),
        (peer(7, 7), ADMINS, COUNTS),
        (peer(7, 0), None, COUNTS),  # root's group is no admin group unless it is set
        (peer(7, 0), 0, ALL),
        (peer(0, 0, pid=0), None, COUNTS),  # a caller in another pid namespace
        (peer(65534, ADMINS), ADMINS, COUNTS),  # a caller in another user namespace
        (None, ADMINS, COUNTS),  # a caller over TCP
    ],
)
def test_which_callers_see_processes_and_which_see_counts(
    peer: Peer | None, admin_group: int | None, sees: str
) -> None:
    assert reader_of(peer, admin_group) == sees


@pytest.fixture
def watcher(tmp_path: Path) -> TopologyWatcher:
    watcher = TopologyWatcher(StandIn(tmp_path), Settings(socket=f"{tmp_path}/s"))
    watcher.known = Node(machine("dgx-h100"))
    return watcher


@pytest.mark.parametrize("path", ["/plan", "/audit", "/", "/topology"])
@pytest.mark.parametrize(
    ("headers", "is_answered"),
    [
        *(({"host": name}, True) for name in ("localhost:9465", "127.0.0.1:9465", "[::1]:9465")),
        *(({"host": name}, True) for name in ("", "::1", "node7", "unix")),
        *(({"host": name}, False) for name in ("a.site", "a.site:9465", "127.0.0.1.a.site")),
        *(({"sec-fetch-site": site}, True) for site in ("none", "same-origin")),
        *(({"sec-fetch-site": site}, False) for site in ("cross-site", "same-site")),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
    ],
)
async def test_pages_of_other_sites_may_not_send_requests(
    path: str, headers: dict[str, str], is_answered: bool, watcher: TopologyWatcher
) -> None:
    status, _ = await answered(watcher, path=path, headers=headers, peer=peer(0, 0))
    assert (status != HTTPStatus.FORBIDDEN) == is_answered


def app_of(watcher: TopologyWatcher) -> ASGIApp:
    metrics = Metrics(watcher, lambda: None)
    return whole_app(ApiState(Settings(), watcher, metrics, lambda: None))


async def answered(
    watcher: TopologyWatcher,
    accept: bytes = b"*/*",
    *,
    app: ASGIApp | None = None,
    path: str = "/plan",
    headers: Mapping[str, str] = MappingProxyType({}),
    peer: Peer | None = None,
) -> tuple[int, str]:
    """Return the status and text of the app's answer to GET, even if the app raises an error."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:  # noqa: ANN401 - as ASGI has it
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    query = b"gpus=0" if path == "/plan" else b""
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query}
    pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
    state = {KEY: peer}
    with suppress(RuntimeError):
        await (app or app_of(watcher))(
            {**scope, "headers": [(b"accept", accept), *pairs], "state": state}, receive, send
        )
    start, body = sent
    return start["status"], body["body"].decode()


@pytest.mark.parametrize("accept", [b"*/*", b"text/plain"])
async def test_a_bug_is_a_500_of_one_line(
    accept: bytes, watcher: TopologyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Reply:
        raise RuntimeError("a bug: it is so")

    monkeypatch.setattr(plan, "find_reply", broken)
    status, text = await answered(watcher, accept)
    assert (status, text.count("\n"), "it is so" in text) == (500, 1, False)
    title = text.partition(":")[0] if accept == b"text/plain" else json.loads(text)["title"]
    assert title == "Internal error"


@pytest.mark.parametrize("path", ["/plan", "/topology", "/topology.svg"])
async def test_a_user_s_many_requests_do_not_delay_other_users(
    watcher: TopologyWatcher, path: str
) -> None:
    api = app_of(watcher)
    answered_users = []

    async def ask(uid: int) -> None:
        await answered(watcher, path=path, peer=peer(uid), app=api)
        answered_users.append(uid)

    many, another = 7, 8
    await ask(many)  # the machine is read
    await asyncio.gather(*(ask(many) for _ in range(40)), ask(another))
    assert answered_users.index(another) == MOST_IN_TURN + 1, answered_users


async def test_a_plan_uses_the_cpus_that_are_online_at_the_request(tmp_path: Path) -> None:
    source = StandIn(tmp_path)
    watcher = TopologyWatcher(source, Settings(socket=f"{tmp_path}/s"))
    watcher.known = Node(source.topology)
    source.topology = FEWER
    source.set_online("1-223")
    _, text = await answered(watcher, b"text/plain")
    assert text == "1-55,113-167\n"
