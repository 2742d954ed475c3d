"""Clients that ask in loops while things happen to a daemon, and judge every single answer.

Right is what the planner says of a topology that was true at some moment of the request. What may
come instead is a 5xx, or a connection that is refused or breaks off; nothing else may.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from affinityd.client.local_plan import plan_on_node
from affinityd.errors import AffinityError
from affinityd.request import formats
from affinityd.topology.model import Node, Topology

PATIENCE = 20.0  #: seconds that one answer may take

#: What is asked in turn: remembered and planned anew, of one GPU and of all.
QUERIES = (
    "gpus=0&mode=node",
    "gpus=all&mode=unique_contiguous",
    "gpus=0&mode=exclusive&share=requested",
    "gpus=all&mode=even",
)


class Truth:
    """What the machine was, and when."""

    def __init__(self, topology: Topology) -> None:
        self._spells = [(topology, 0.0, float("inf"))]
        self._right: dict[tuple[int, str], str] = {}

    @contextmanager
    def becoming(self, topology: Topology) -> Iterator[None]:
        """Change the machine in the block, or have it noticed there: both are true meanwhile."""
        self._spells.append((topology, time.monotonic(), float("inf")))
        yield
        former, began, _ = self._spells[-2]
        self._spells[-2] = former, began, time.monotonic()

    def allows(self, query: str, said: str, began: float, ended: float) -> bool:
        """Whether this may have been answered between two moments."""
        return any(
            self._answer(place, query) == said
            for place, (_, since, until) in enumerate(list(self._spells))
            if since <= ended and began <= until
        )

    def _answer(self, place: int, query: str) -> str:
        topology = self._spells[place][0]
        key = id(topology), query  # topologies come again; to hash one would read it all
        if key not in self._right:
            self._right[key] = right_answer(topology, query)
        return self._right[key]


def right_answer(topology: Topology, query: str) -> str:
    """Return what a daemon is to answer, its status before it where that is an error's."""
    question = dict(parameter.split("=") for parameter in query.split("&"))
    try:
        return formats.render(plan_on_node(Node(topology), [question]), "cpulist")
    except AffinityError as error:
        return f"{error.status} {error.title}: {error}\n"


class Asked:
    """What came of all the questions."""

    def __init__(self) -> None:
        self.answered = 0
        self.refused: Counter[str] = Counter()  #: how often, by why
        self.cut = 0  #: answers that broke off in their middle
        self.wrong: list[str] = []
        self.slowest = 0.0  #: seconds

    def judge(self, path: Path, query: str, truth: Truth) -> None:
        """Ask once."""
        began = time.monotonic()
        data = b""
        try:
            data = exchange(path, f"/plan?{query}&format=cpulist")
        except OSError as error:
            self.refused[type(error).__name__] += 1
            return
        ended = time.monotonic()
        self.slowest = max(self.slowest, ended - began)
        head, _, body = data.partition(b"\r\n\r\n")
        status = head.split(b" ")[1].decode() if head else ""
        if not data:
            self.refused["closed"] += 1
        elif f"content-length: {len(body)}" not in head.decode().lower().split("\r\n"):
            self.cut += 1
        elif status.startswith("5"):
            self.refused[status] += 1
        else:
            said = body.decode() if status == "200" else f"{status} {body.decode()}"
            self.answered += 1
            if not truth.allows(query, said, began, ended):
                self.wrong.append(f"{query}: {said}")


def exchange(path: Path, target: str) -> bytes:
    """Return all that a server sends on a connection of its own, be it a part; raises OSError."""
    data = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(os.fspath(path))
        connection.sendall(
            f"GET {target} HTTP/1.1\r\nHost: l\r\nAccept: text/plain\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        try:
            while part := connection.recv(65536):
                data += part
        except ConnectionError:
            if not data:
                raise
    return data


@contextmanager
def asking(
    path: Path, truth: Truth, *, clients: int = 4, queries: Sequence[str] = QUERIES
) -> Iterator[Asked]:
    """Ask in loops until the end of the block; what was wrong by then fails it."""
    asked, over = Asked(), threading.Event()

    def loop(first: int) -> None:
        for query in itertools.islice(itertools.cycle(queries), first, None):
            if over.is_set():
                return
            asked.judge(path, query, truth)
            if asked.refused:
                time.sleep(0.002)  # while nobody is there, the machine is the starting daemon's

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert asked.wrong == [], asked.wrong[:3]
    assert asked.answered, asked.refused


def answered_more(asked: Asked, number: int = 50) -> bool:
    """Wait until so many more have been answered."""
    goal, end = asked.answered + number, time.monotonic() + PATIENCE
    while asked.answered < goal and time.monotonic() < end:
        time.sleep(0.01)
    return asked.answered >= goal
