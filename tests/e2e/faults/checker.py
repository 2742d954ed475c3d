"""Clients that send requests in loops while a daemon is disturbed, and check every answer.

An answer is right if the planner gives it for a topology that is true at that time. The test
also permits a 5xx, and a connection that is refused or breaks off.
"""

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.parse import parse_qsl

from affinityd.client.local_plan import plan_on_node
from affinityd.request import formats
from affinityd.topology.model import Node, Topology
from tests.support.daemons import UnixConnection, eventually

#: The queries, in turn: for remembered and for new plans, of one GPU and of all.
QUERIES = (
    "gpus=0&mode=node",
    "gpus=all&mode=unique_contiguous",
    "gpus=0&mode=exclusive&share=requested",
    "gpus=all&mode=even",
)
#: Queries of a live machine. They state a cpuset: without it the plan would use the caller's
#: mask, which differs between tests.
LIVE_QUERIES = tuple(
    f"{query}&cpuset={','.join(map(str, sorted(os.sched_getaffinity(0))))}"
    for query in ("gpus=0&mode=node", "gpus=all&mode=even")
)


def exchange(path: Path, query: str) -> tuple[int, str]:
    """Return an answer's status and text; raise HTTPException if the answer breaks off."""
    headers = {"Accept": "text/plain", "Connection": "close"}
    with closing(UnixConnection(path)) as connection:
        connection.request("GET", f"/plan?{query}&format=cpulist", headers=headers)
        answer = connection.getresponse()
        if answer.length is None:
            raise IncompleteRead(b"")
        try:
            return answer.status, answer.read().decode()
        except ConnectionError as error:
            raise IncompleteRead(b"") from error


class Asked:
    def __init__(self) -> None:
        self.answered = 0
        self.refused: Counter[str] = Counter()  #: reason → how often
        self.cut = 0  #: answers that broke off in their middle
        self.wrong: list[str] = []

    def judge(self, path: Path, query: str, right: set[str]) -> None:
        try:
            status, text = exchange(path, query)
        except OSError as error:
            self.refused[type(error).__name__] += 1
        except HTTPException:
            self.cut += 1
        else:
            if status >= 500:
                self.refused[str(status)] += 1
            else:
                self.answered += 1
                if status != 200 or text not in right:
                    self.wrong.append(f"{query}: {status} {text}")

    def more(self, number: int = 50) -> None:
        goal = self.answered + number
        eventually(lambda: self.answered >= goal, "more are answered")


@contextmanager
def asking(
    path: Path, *true: Topology, clients: int = 4, queries: Sequence[str] = QUERIES
) -> Iterator[Asked]:
    """Ask in loops until the end of the block, which then fails if any answer was wrong."""
    plans = {query: [plan_on_node(Node(it), parse_qsl(query)) for it in true] for query in queries}
    right = {query: {formats.render(it, "cpulist") for it in plans[query]} for query in queries}
    asked, over = Asked(), threading.Event()

    def loop(first: int) -> None:
        for query in itertools.islice(itertools.cycle(queries), first, None):
            if over.is_set():
                return
            asked.judge(path, query, right[query])
            if asked.refused:
                time.sleep(0.002)  # leave the CPU to a daemon that starts

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
