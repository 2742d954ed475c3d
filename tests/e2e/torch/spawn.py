"""A process that spawns a rank for each of two GPUs, which then bind themselves.

spawn.py "by number" | "by what it sees"
"""

from __future__ import annotations

import json
import os
import sys

import torch.multiprocessing as mp

import affinityd
from affinityd.cpuset import format_list


def rank(number: int, way: str, results: mp.SimpleQueue) -> None:
    started = frozenset(os.sched_getaffinity(0))
    if way == "by number":
        bound = affinityd.bind(number)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
        bound = affinityd.bind()
    said = {"started": format_list(started), "bound": format_list(bound.cpus)}
    results.put((number, {**said, "locality": bound.locality}))


def main(way: str) -> None:
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (way, results), nprocs=2)
    print(json.dumps([said for _, said in sorted(results.get() for _ in range(2))]))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
