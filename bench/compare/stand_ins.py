"""The modules that tools ask about GPUs, answering for a reported machine."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType, SimpleNamespace

from affinityd.cpuset import CpuSet
from bench.compare.reported import Question


def _module(name: str, **attributes: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def _words(cpus: Iterable[int], count: int) -> list[int]:
    """Return CPUs as NVML does: words of 64 bits, the lowest first."""
    bits = sum(1 << cpu for cpu in cpus)
    return [bits >> 64 * word & (1 << 64) - 1 for word in range(count)]


def pynvml(question: Question) -> ModuleType:
    """Return NVML's binding; a handle is the GPU's index, and lists are cut to the cpuset."""
    machine = question.machine
    node, socket = 0, 1

    def near(gpu: int, scope: int) -> CpuSet:
        own = machine.nodes[machine.gpu_node(gpu)]
        packages = (cpus for cpus in machine.packages.values() if cpus & own)
        return own if scope == node else own.union(*packages)

    def affinity(gpu: int, count: int, scope: int) -> list[int]:
        return _words(near(gpu, scope) & question.allowed, count)

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


def torch(question: Question) -> dict[str, ModuleType]:
    """Return as much of torch as torch.numa asks; devices are numbered as the process sees them."""
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
