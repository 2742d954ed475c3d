"""Does pinning help a training job whose data loaders are the bottleneck? One run shows it.

    python examples/loader_ab.py --workers 8 --batch 16 --size 512

Every rank of a DDP job has loader workers that make large images, and a model too small to matter:
the job is as fast as its loaders. The job runs by turns without and with `affinityd exec`, each
time in fresh processes, since memory stays where it was first touched. How to read what is printed:

- The ratio is what pinning brings to a job like this one, on this machine, as busy as it is now.
  Where single rounds disagree by more than that, nothing was measured: take more --rounds and
  --steps on a quieter machine.
- There is nothing to see on a machine with one NUMA node, or if the job is already confined: look
  at the CPUs of both arms. Start this script without another pin.
- A ratio below 1 is an answer, too: too few near CPUs for the workers cost more than far memory.
  Try --mode socket, or fewer workers.
- "near" is the share of the samples' memory on the NUMA node of their rank's GPU; "?" if
  unknown. If it is high without pinning, there is little to gain.

Without a GPU this script runs two ranks on the CPU, which shows only that the script works.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
except ImportError:
    sys.exit("loader_ab.py needs PyTorch; pip install torch brings it")

import affinityd
from affinityd.cpuset import format_list

ARMS = ("unpinned", "pinned")
PREFETCH = 2  #: batches that a worker makes ahead, DataLoader's default
SIZES = ("workers", "batch", "size", "steps")  #: options that the ranks are told, too
SMOKE = {"workers": 2, "batch": 4, "size": 64, "steps": 10, "rounds": 1}
WORKS = "both arms ran, so the script works; so short a run measures nothing"
MOVE_PAGES = {"x86_64": 279, "aarch64": 239, "ppc64le": 301}  #: move_pages(2)'s number, by machine
SHARED = "/dev/shm"  # noqa: S108 - where workers put what they have made
PAGES = 64  #: pages of a sample that are examined
PAGE = 4096  #: bytes of a page, or of a part of a larger page

Sample = tuple[torch.Tensor, float]


@dataclass(frozen=True)
class Measured:
    """The result of one run."""

    rate: float  #: steps per second
    cpus: list[str]  #: the ranks' cpulists
    near: list[float]  #: by rank, the share of its samples' memory on its GPU's node; NaN: unknown


def main() -> None:
    """Run both arms by turns and compare them; or be a rank of one arm."""
    options = read_options()
    if options.result:
        be_a_rank(options)
        return
    ranks = torch.cuda.device_count() or 2
    check_shared_memory(ranks, options)
    kind = "GPU" if torch.cuda.is_available() else "CPU"
    print(f"{ranks} {kind} ranks with {options.workers} workers each, mode {options.mode}")
    print("round  arm       steps/s  near  CPUs of each rank", flush=True)
    runs: dict[str, list[Measured]] = {arm: [] for arm in ARMS}
    for number, arm in product(range(1, options.rounds + 1), ARMS):
        one = run(arm, ranks, options)
        runs[arm].append(one)
        near = statistics.fmean(one.near)
        shown = "?" if math.isnan(near) else f"{near:.0%}"
        print(
            f"{number:5}  {arm:8} {one.rate:8.2f}  {shown:>4}  {' | '.join(one.cpus)}", flush=True
        )
    print(WORKS if options.smoke else compared(runs["unpinned"], runs["pinned"]))


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8, help="loader workers of a rank")
    parser.add_argument("--batch", type=int, default=16, help="images in a step of a rank")
    parser.add_argument("--size", type=int, default=512, help="edge of an image, in pixels")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    parser.add_argument("--rounds", type=int, default=4, help="how often both arms run")
    parser.add_argument("--mode", default="node", help="affinityd's mode (default: node)")
    parser.add_argument("--smoke", action="store_true", help="small and short: does it work?")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(SMOKE)
    return options


def check_shared_memory(ranks: int, options: argparse.Namespace) -> None:
    """Exit if the workers would have no room for their batches."""
    batch = options.batch * 3 * options.size**2 * torch.float32.itemsize
    needed = ranks * options.workers * (PREFETCH + 1) * batch
    shm = os.statvfs(SHARED)
    free = shm.f_bavail * shm.f_frsize
    if needed > free:
        sys.exit(
            f"{SHARED} has {free / 2**30:.1f} GiB free and {needed / 2**30:.1f} are needed; "
            "take a smaller --size, --batch or --workers"
        )


def run(arm: str, ranks: int, options: argparse.Namespace) -> Measured:
    """Run one arm: torchrun starts the ranks, through affinityd in the pinned arm."""
    pin = [sys.executable, "-m", "affinityd", "exec", "--mode", options.mode, "--"]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"),
            *("--nproc-per-node", str(ranks)),
            *(pin if arm == "pinned" else []),
            *(sys.executable, __file__, "--result", str(result)),
            *(f"--{name}={getattr(options, name)}" for name in SIZES),
        ]
        done = subprocess.run(command, check=False, env={"OMP_NUM_THREADS": "1", **os.environ})
        if done.returncode != 0:
            sys.exit(f"the {arm} ranks ended with status {done.returncode}")
        return Measured(**json.loads(result.read_text()))


def be_a_rank(options: argparse.Namespace) -> None:
    """Train; rank 0 writes the result to a file."""
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if has_gpu else "cpu", int(os.environ["LOCAL_RANK"]))
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    ahead = PREFETCH * options.workers  # batches made before the clock starts, or not needed
    count = options.batch * (2 * ahead + options.steps)
    loader = DataLoader(
        Images(count, options.size, gpu_node(device)),
        batch_size=options.batch,
        num_workers=options.workers,
        pin_memory=has_gpu,
        worker_init_fn=affinityd.worker_init_fn,
    )
    steps = train(loader, device)
    list(islice(steps, ahead))
    start = time.perf_counter()
    near = list(islice(steps, options.steps))
    rate = options.steps / (time.perf_counter() - start)
    mine = (format_list(frozenset(os.sched_getaffinity(0))), statistics.fmean(near))
    everyone = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        cpus, nears = zip(*everyone, strict=True)
        Path(options.result).write_text(json.dumps({"rate": rate, "cpus": cpus, "near": nears}))
    dist.destroy_process_group()


def train(loader: DataLoader[Sample], device: torch.device) -> Iterator[float]:
    """Train, and yield after each step the share of its samples' memory that is near."""
    layers = (nn.Conv2d(3, 8, 7, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for images, near in loader:
        loss = model(images.to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the GPU
        yield float(near.mean())


class Images:
    """Large images, made anew for every sample: as much memory traffic as decoded photos."""

    def __init__(self, count: int, size: int, node: int | None) -> None:
        self._count = count
        self._size = size
        self._node = node

    def __len__(self) -> int:
        """Return how many images there are."""
        return self._count

    def __getitem__(self, index: int) -> Sample:
        """Return an image, normalised and flipped, and the share of its memory that is near."""
        pixels = torch.full((3, self._size, self._size), index % 256, dtype=torch.uint8)
        image = pixels.float().div_(255).sub_(0.5).div_(0.25).flip(2)
        return image, near_share(image, self._node)


def gpu_node(device: torch.device) -> int | None:
    """Return a GPU's NUMA node, as sysfs has it; None: unknown, or there is only one node."""
    if device.type != "cuda" or not Path("/sys/devices/system/node/node1").exists():
        return None
    gpu = torch.cuda.get_device_properties(device)
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except OSError:
        return None
    return node if node >= 0 else None


def near_share(tensor: torch.Tensor, node: int | None) -> float:
    """Return the share of a tensor's pages that lie on a node; NaN if it is not known."""
    number = MOVE_PAGES.get(os.uname().machine)
    if node is None or number is None:
        return math.nan
    start, size = tensor.data_ptr(), tensor.nbytes
    places = range(start, start + size, max(size // PAGES, PAGE))
    count = ctypes.c_ulong(len(places))
    pages = (ctypes.c_void_p * len(places))(*places)
    nodes = (ctypes.c_int * len(places))()
    # Without nodes to move pages to, move_pages(2) tells where the pages are.
    status = ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, count, pages, None, nodes, 0)
    return math.nan if status else sum(found == node for found in nodes) / len(nodes)


def compared(unpinned: list[Measured], pinned: list[Measured]) -> str:
    """Return the lines that compare the rounds of both arms."""
    ratios = sorted(b.rate / a.rate for a, b in zip(unpinned, pinned, strict=True))
    says = (
        f"steps/s: {statistics.median(one.rate for one in unpinned):.2f} unpinned, "
        f"{statistics.median(one.rate for one in pinned):.2f} pinned; "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    if unpinned[0].cpus == pinned[0].cpus:
        return f"{says}: both had the same CPUs, so this is noise"
    if len(ratios) == 1 or ratios[0] <= 1 <= ratios[-1]:
        return f"{says}: no difference that so few rounds can show"
    return says


if __name__ == "__main__":
    main()
