"""Runs a tool's own code on a reported machine: in a child that has the machine's tree as its root.

The tool reads /sys by absolute paths. Functions replace the real ones where no file has the
answer: masks, the number of CPUs, NVML, and torch's list of devices.
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
from types import ModuleType, SimpleNamespace

from affinityd.cpuset import CpuSet, format_list, parse_list
from bench.compare.fetch import GPU_AFFINITY, TORCH
from bench.compare.judge import Answer
from bench.compare.reported import Question

#: Binds the calling process, as rank i.
Bind = Callable[[int], object]


def gpu_affinity(question: Question, tree: Path) -> Answer:
    """`gpu_affinity.set_affinity(gpu_id, nproc_per_node)`, with its defaults."""

    def prepare() -> Bind:
        sys.modules["pynvml"] = _pynvml(question)
        sys.path.insert(0, str(GPU_AFFINITY))
        module = importlib.import_module("gpu_affinity")
        return lambda rank: module.set_affinity(rank, len(question.order))

    return in_tree(question, tree, prepare)


def torch_numa(mode: str) -> Callable[[Question, Path], Answer]:
    """`torchrun --numa-binding=MODE`."""

    def ask(question: Question, tree: Path) -> Answer:
        def prepare() -> Bind:
            sys.modules.update(_torch(question))
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


# The modules that tools ask about GPUs, answering for a reported machine.


def _module(name: str, **attributes: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def _pynvml(question: Question) -> ModuleType:
    """Return NVML's binding; a handle is the GPU's index, and CPU lists are cut to the cpuset."""
    machine = question.machine
    node, socket = 0, 1

    def near(gpu: int, scope: int) -> CpuSet:
        own = machine.nodes[machine.gpu_node(gpu)]
        packages = (cpus for cpus in machine.packages.values() if cpus & own)
        return own if scope == node else own.union(*packages)

    def affinity(gpu: int, count: int, scope: int) -> list[int]:
        """Return words of 64 bits, the lowest first."""
        bits = sum(1 << cpu for cpu in near(gpu, scope) & question.allowed)
        return [bits >> 64 * word & (1 << 64) - 1 for word in range(count)]

    return _module(
        "pynvml",
        NVMLError=type("NVMLError", (Exception,), {}),
        NVML_AFFINITY_SCOPE_NODE=node,
        NVML_AFFINITY_SCOPE_SOCKET=socket,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(machine.gpus),
        nvmlDeviceGetHandleByIndex=range(len(machine.gpus)).__getitem__,
        nvmlDeviceGetCpuAffinityWithinScope=affinity,
    )


def _torch(question: Question) -> dict[str, ModuleType]:
    """Return the part of torch that torch.numa uses; devices are numbered as processes see."""
    gpus = [question.machine.gpus[index] for index in question.order]

    def properties(index: int) -> SimpleNamespace:
        domain, bus, rest = gpus[index].pci_bus_id.split(":")
        numbers = (int(it, 16) for it in (domain, bus, rest.split(".")[0]))
        return SimpleNamespace(
            **dict(zip(("pci_domain_id", "pci_bus_id", "pci_device_id"), numbers, strict=True))
        )

    device = SimpleNamespace(get_device_properties=properties)
    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: "cuda",
        device_count=lambda: len(gpus),
    )
    return {
        "torch": _module("torch", accelerator=accelerator, get_device_module=lambda _: device),
        "torch._utils_internal": _module(
            "torch._utils_internal", signpost_event=lambda *_args, **_more: None
        ),
    }
