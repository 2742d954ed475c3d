"""affinityd: the CPUs and memory near each GPU rank.

In a training script: `affinityd.bind()`, or `affinityd.set_affinity(gpu_id, nproc_per_node)`.
"""

from __future__ import annotations

__version__ = "0.2.0"
__all__ = [
    "AffinityError",
    "Binding",
    "GPUAffinityError",
    "Mode",
    "Multithreading",
    "Scope",
    "bind",
    "plan",
    "set_affinity",
    "verify",
    "worker_init_fn",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from affinityd.cli.commands.verify import verify
    from affinityd.client.bind import (
        Binding,
        Mode,
        Multithreading,
        Scope,
        bind,
        plan,
        set_affinity,
        worker_init_fn,
    )
    from affinityd.errors import AffinityError, GPUAffinityError

#: The module of each name: imported on first use, as `affinityd exec` needs none of them.
_HOMES = {
    "client.bind": (
        *("Binding", "bind", "plan", "worker_init_fn"),
        *("Mode", "Multithreading", "Scope", "set_affinity"),
    ),
    "cli.commands.verify": ("verify",),
    "errors": ("AffinityError", "GPUAffinityError"),
}


def __getattr__(name: str) -> object:
    """Import a name, PEP 562."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
