"""Runs a tool's own code on a reported machine: in a child that has the machine's tree as its root.

The tool reads /sys by absolute paths. What no file answers is answered by functions in place of
the real ones: masks, the number of CPUs, NVML, and torch's list of devices.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from affinityd.cpuset import format_list, parse_list
from bench.compare import stand_ins
from bench.compare.fetch import GPU_AFFINITY, TORCH
from bench.compare.judge import Answer
from bench.compare.reported import Question

#: Binds the calling process, as rank i.
Bind = Callable[[int], object]


def gpu_affinity(question: Question, tree: Path) -> Answer:
    """`gpu_affinity.set_affinity(gpu_id, nproc_per_node)`: its defaults."""

    def prepare() -> Bind:
        sys.modules["pynvml"] = stand_ins.pynvml(question)
        sys.path.insert(0, str(GPU_AFFINITY))
        module = importlib.import_module("gpu_affinity")
        return lambda rank: module.set_affinity(rank, len(question.order))

    return in_tree(question, tree, prepare)


def torch_numa(mode: str) -> Callable[[Question, Path], Answer]:
    """`torchrun --numa-binding=MODE`."""

    def ask(question: Question, tree: Path) -> Answer:
        def prepare() -> Bind:
            sys.modules.update(stand_ins.torch(question))
            module = _loaded("torch_numa_binding", TORCH)
            options = module.NumaOptions(module.AffinityMode(mode))
            apply = module._maybe_apply_numa_binding_to_current_process  # noqa: SLF001
            return lambda rank: apply(device_index=rank, numa_options=options)

        return in_tree(question, tree, prepare)

    return ask


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def in_tree(question: Question, tree: Path, prepare: Callable[[], Bind]) -> Answer:
    """Return where each rank's process is bound; `prepare` imports the tool, before the chroot."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            logging.disable()
            os.write(writer, json.dumps(_bound(question, tree, prepare)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(text)
    if isinstance(found, str):
        return Answer(error=found)
    return Answer([None if it is None else parse_list(it) for it in found])


def _bound(question: Question, tree: Path, prepare: Callable[[], Bind]) -> list[str | None] | str:
    masks: list[frozenset[int] | None] = []

    def set_mask(_pid: int, cpus: Iterable[int]) -> None:
        """Cut the mask to the cpuset, as the kernel does."""
        inside = frozenset(cpus) & question.allowed
        if not inside:
            raise OSError(22, "Invalid argument")
        masks[-1] = inside

    os.environ["CUDA_VISIBLE_DEVICES"] = question.visible
    os.cpu_count = lambda: len(question.machine.online)
    os.sched_getaffinity = lambda _pid: set(masks[-1] or question.allowed)
    os.sched_setaffinity = set_mask
    masks.append(None)
    bind = prepare()
    os.chroot(tree)
    os.chdir("/")
    masks.clear()
    for rank in range(len(question.order)):
        masks.append(None)
        try:
            bind(rank)
        except Exception as error:  # noqa: BLE001 # any: the rank does not start
            return f"{type(error).__name__}: {error}"
    return [None if it is None else format_list(it) for it in masks]
