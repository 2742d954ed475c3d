"""NVML's report as a snapshot has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from affinityd.errors import TreeError

if TYPE_CHECKING:
    from affinityd.discovery.nvml.report import NvmlReport
    from affinityd.discovery.tree import Tree

#: Where a snapshot keeps NVML's answers, beside `sys` and `proc`.
NVML_FILE = "nvml.json"


def snapshot_nvml(tree: Tree) -> NvmlReport | None:
    """Return NVML's report in a snapshot; None for other trees.

    Raises TreeError where that cannot be read.
    """
    text = tree.read(NVML_FILE)
    if text is None:
        return None
    from affinityd.discovery.nvml.report import NvmlReport, read_report  # noqa: PLC0415 - rare

    try:
        return read_report(NvmlReport, text)
    except ValueError as error:
        raise TreeError(f"{NVML_FILE} of machine {tree.name!r} cannot be read: {error}") from None
