"""A thousand connections and a hundred thousand plans: errors, times, and the daemon's memory.

Each connection has a question under way: plans that were asked for before, plans that were not, and
questions that are refused. What differs between the distinct ones is all that an answer may depend
on: parameters, a long `visible`, a `cpuset` of thousands of parts, the Accept header, the caller's
mask. Each answer must have its status, and one that was given before the same bytes.

    python -m bench.load [--connections N] [--distinct N]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from bench.connections import END, Crowd, Question, burst, get, is_ok
from bench.daemon import GPUS, live, resident

CONNECTIONS = 1000
DISTINCT = 100_000
SETTLED = 10_000  #: distinct questions after which memory is to grow no more
REFUSED = {b"404", b"409", b"422"}

CPUS = sorted(os.sched_getaffinity(0))
MASKS = [CPUS, CPUS[:1], CPUS[-1:]]  #: the caller's, in turn
TURN = 100  #: distinct questions between two masks

LONG = 30_000  #: characters
SELDOM = 500  #: one distinct question in so many is a giant

REMEMBERED = [get(f"/plan?gpus=all&rank={rank}&mode=node") for rank in range(GPUS)]
WRONG = [
    *("gpus=99", "gpus=GPU-none", "gpu=0", "gpus=0&gpus=1", "cpuset=0-4294967295", "gpus=%FF"),
    *("gpus=all&mode=exclusive&min_physical_cores=99", "rank=9", "cpuset=255", "mode=nothing"),
]


@dataclass(frozen=True)
class Load:
    """What came of it: seconds that answers took, and bytes of memory."""

    took: Sequence[float]
    settled: int  #: after SETTLED distinct questions
    after: int

    @property
    def growth(self) -> float:
        return self.after / self.settled - 1

    def quantile(self, share: float) -> float:
        return sorted(self.took)[int(len(self.took) * share)]


KINDS = ("cpuset", "visible", "accept", "gpus")


def distinct(number: int) -> Question:
    """Return a question that no other number has; one in SELDOM of each kind is a giant."""
    kind, giant = KINDS[number % len(KINDS)], number % SELDOM < len(KINDS)
    query, accept = f"max_physical_cores={number + 1}&mode=node", "*/*"
    if kind == "cpuset":
        parts, step = LONG // 6 if giant else 8, 2 + number % 7
        first = 2 + number % 97
        cpus = (0, *range(first, first + parts * step, step))  # 0, which the client has itself
        query += f"&cpuset={','.join(map(str, cpus))}"
    elif kind == "visible":
        query += f"&visible=0,1,x{'y' * (LONG if giant else 100)}{number}"
    elif kind == "accept":
        accept = f"application/json;q=0.{number}{'1' * (LONG if giant else 10)}"
    else:
        digits = f"{number:o}"
        query += f"&gpus={','.join(digits * (20 if giant else 1))}"
    return get(f"/plan?{query}", accept), is_ok


def is_refused(answer: bytes) -> bool:
    return answer[9:12] in REFUSED and b"application/problem+json" in answer


def mixed(numbers: Sequence[int], known: Sequence[Question]) -> Iterator[Question]:
    """Yield a distinct question for each number, and others among them."""
    again = cycle(known)
    wrong = cycle((get(f"/plan?{query}"), is_refused) for query in WRONG)
    for number in numbers:
        if number % TURN == 0:
            os.sched_setaffinity(0, MASKS[number // TURN % len(MASKS)])
        yield distinct(number)
        if number % 4 == 0:
            yield next(again)
        if number % 20 == 0:
            yield next(wrong)


def remembered(path: str) -> Sequence[Question]:
    """Ask for what is to be remembered, with each mask; return it, and what to expect."""
    bodies: list[set[bytes]] = [set() for _ in REMEMBERED]
    for mask in MASKS:
        os.sched_setaffinity(0, mask)
        for known, answer in zip(bodies, burst(path, REMEMBERED)[1], strict=True):
            known.add(answer.partition(END)[2])
    return [
        (request, lambda answer, known=known: answer.partition(END)[2] in known)  # type: ignore[misc]
        for request, known in zip(REMEMBERED, bodies, strict=True)
    ]


def measure(connections: int = CONNECTIONS, number: int = DISTINCT) -> Load:
    """Ask it all. Raises AssertionError for an answer that is wrong, or does not come."""
    took = list[float]()
    with tempfile.TemporaryDirectory(prefix="affinityd-bench-") as folder, ExitStack() as stack:
        daemon = stack.enter_context(live(Path(folder, "live")))
        stack.callback(os.sched_setaffinity, 0, CPUS)
        path, process = str(daemon.socket), daemon.process.pid
        known = remembered(path)
        crowd = stack.enter_context(closing(Crowd(path, connections)))
        took += crowd.ask(mixed(range(SETTLED), known))
        settled = resident(process)
        took += crowd.ask(mixed(range(SETTLED, number), known))
        return Load(took, settled, resident(process))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--distinct", type=int, default=DISTINCT)
    arguments = parser.parse_args()
    load = measure(arguments.connections, arguments.distinct)
    p50, p99 = (load.quantile(share) * 1000 for share in (0.5, 0.99))
    print(f"{len(load.took)} answers, no error; p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    print(f"resident memory {load.growth:+.1%} (goal 10%)")


if __name__ == "__main__":
    main()
