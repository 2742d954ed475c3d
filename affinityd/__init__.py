"""affinityd: on which CPUs, and which memory, each GPU rank belongs.

In a training script: `affinityd.bind()`, or `affinityd.set_affinity(gpu_id, nproc_per_node)`.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = [
    "AffinityError",
    "Binding",
    "GPUAffinityError",
    "Mode",
    "Multithreading",
    "Scope",
    "bind",
    "set_affinity",
    "worker_init_fn",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from affinityd.client.bind import Binding, bind, worker_init_fn
    from affinityd.client.gpu_affinity import Mode, Multithreading, Scope, set_affinity
    from affinityd.errors import AffinityError
    from affinityd.errors import AffinityError as GPUAffinityError

#: Where each name is: imported when it is asked for, as `affinityd exec` needs none of them.
_HOMES = {
    **{name: ("client.bind", name) for name in ("Binding", "bind", "worker_init_fn")},
    **{
        name: ("client.gpu_affinity", name)
        for name in ("Mode", "Multithreading", "Scope", "set_affinity")
    },
    "AffinityError": ("errors", "AffinityError"),
    "GPUAffinityError": ("errors", "AffinityError"),
}


def __getattr__(name: str) -> object:
    """Import a name, PEP 562."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module, attribute = _HOMES[name]
    found: object = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
