"""The tools that are compared: a row for each tool, in its best documented setting."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from affinityd import __version__
from affinityd.cli import main
from affinityd.cpuset import format_list, parse_list
from bench.compare import fetch, own_code, rules
from bench.compare.judge import Answer
from bench.compare.reported import Question

CUDA = ("nvidia",)
TORCH = ("nvidia", "amd")


@dataclass(frozen=True)
class Tool:
    name: str
    version: str
    setting: str
    ask: Callable[[Question, Path], Answer]
    vendors: Sequence[str] = ("nvidia", "amd", "8086")  #: the GPUs that it is for
    unique: bool = False  #: no two ranks share a core
    missing: Callable[[], str | None] = lambda: None  #: why its code cannot be had


def affinityd(*options: str) -> Callable[[Question, Path], Answer]:
    """`affinityd plan`, on the same tree."""

    def ask(question: Question, tree: Path) -> Answer:
        cpuset = ["--cpuset", format_list(question.allowed), "--visible", question.visible]
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = main(["plan", "--root", str(tree), "--format", "cpulist", *cpuset, *options])
        if status:
            return Answer(error=errors.getvalue().strip())
        return Answer([parse_list(line) for line in out.getvalue().splitlines()])

    return ask


def by_rule(rule: rules.Rule) -> Callable[[Question, Path], Answer]:
    return lambda question, _tree: rule(question)


TOOLS = (
    Tool("affinityd", __version__, "`affinityd plan`, the default mode", affinityd()),
    Tool(
        "affinityd-exclusive",
        __version__,
        "`affinityd plan --mode exclusive`",
        affinityd("--mode", "exclusive"),
        unique=True,
    ),
    Tool(
        "gpu_affinity",
        fetch.GPU_AFFINITY_COMMIT[:7],
        "`set_affinity(rank, ranks)`",
        own_code.gpu_affinity,
        CUDA,
        unique=True,
        missing=fetch.gpu_affinity,
    ),
    Tool(
        "torch.numa-exclusive",
        fetch.TORCH_VERSION,
        "`torchrun --numa-binding=exclusive`",
        own_code.torch_numa("exclusive"),
        TORCH,
        unique=True,
        missing=fetch.torch_numa,
    ),
    Tool(
        "torch.numa-node",
        fetch.TORCH_VERSION,
        "`torchrun --numa-binding=node`",
        own_code.torch_numa("node"),
        TORCH,
        missing=fetch.torch_numa,
    ),
    Tool("vllm", "0.33.0", "`vllm serve --numa-bind`", by_rule(rules.vllm), CUDA),
    Tool("sglang", "0.5.23", "its default", by_rule(rules.sglang), CUDA),
    Tool("nemo-rl", "7ea279a", "its default: `ray.sub`'s probe", by_rule(rules.nemo_rl), CUDA),
    Tool(
        "cpu-affinity-column",
        "",
        "`taskset -c` with that column of `nvidia-smi topo -m`",
        by_rule(rules.cpu_affinity_column),
        CUDA,
    ),
    Tool(
        "localid-formula",
        "",
        "`numactl --cpunodebind` with LOCALID × nodes ÷ ranks",
        by_rule(rules.local_id),
    ),
    Tool(
        "numactl-by-rank",
        "",
        "`numactl --cpunodebind` with the node of GPU LOCALID",
        by_rule(rules.numactl_by_rank),
    ),
)
