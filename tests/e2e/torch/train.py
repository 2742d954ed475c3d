"""A rank of a training job that reports where its processes are, then waits for the test.

train.py [bind] FOLDER
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import affinityd

WORKERS = 4


class Samples:
    """Each sample says which process made it."""

    def __len__(self) -> int:
        return 2 * WORKERS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), float(index)), os.getpid()


def main(words: Sequence[str], folder: Path) -> None:
    dist.init_process_group("gloo")  # which starts threads
    if "bind" in words:
        affinityd.bind()
    loader = DataLoader(
        Samples(),
        num_workers=WORKERS,
        persistent_workers=True,
        worker_init_fn=affinityd.worker_init_fn,
    )
    model = DistributedDataParallel(nn.Linear(8, 1))
    workers = set()
    for sample, maker in loader:
        model(sample).sum().backward()
        workers.add(int(maker))
    facts = {"process": os.getpid(), "workers": sorted(workers), "environ": dict(os.environ)}
    part = folder / f"{dist.get_rank()}.part"
    part.write_text(json.dumps(facts))
    part.rename(folder / f"{dist.get_rank()}.json")
    while not (folder / "seen").exists():
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:-1], Path(sys.argv[-1]))
