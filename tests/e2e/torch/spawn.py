"""A process that spawns a rank for each of two GPUs, which then bind themselves.

spawn.py "by number" | "by what it sees"
"""

from __future__ import annotations

import json
import os
import sys

import torch.multiprocessing as mp

import affinityd


def rank(number: int, way: str, results: mp.SimpleQueue) -> None:
    started = sorted(os.sched_getaffinity(0))
    if way == "by what it sees":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
    bound = affinityd.bind(number if way == "by number" else None)
    results.put((number, started, sorted(bound.cpus), bound.locality))


def main(way: str) -> None:
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank, (way, results), nprocs=2)
    print(json.dumps(sorted(results.get() for _ in range(2))))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
