"""affinityd: the CPUs and memory near each GPU rank.

In a training script: `affinityd.bind()`, or `affinityd.set_affinity(gpu_id, nproc_per_node)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.3.0"
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


def __getattr__(name: str) -> object:
    """Import a name on first use (PEP 562): `affinityd exec` needs none of these names."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "verify":
        from affinityd.cli.commands.verify import verify  # noqa: PLC0415

        return verify
    from affinityd import errors  # noqa: PLC0415
    from affinityd.client import bind  # noqa: PLC0415

    return getattr(bind, name, None) or getattr(errors, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
