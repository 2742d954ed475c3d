"""Compares a node's GPUs in slurmd with the lines of gres.conf that affinityd prints for it."""

from __future__ import annotations

import difflib

from affinityd.slurm.commands import GresEntry, SlurmdGres
from affinityd.slurm.gres_conf import GresConf, device_file
from affinityd.topology.model import Gpu

#: The files that MultipleFiles= names besides the GPU's own.
MIG_FILES = "/dev/nvidia-caps/"


def differences(conf: GresConf, slurmd: SlurmdGres) -> list[str]:
    """Return a unified diff from slurmd's lines to the printed ones; empty: they are alike.

    A line of slurmd's is a device file's. Device files are not compared where the printed lines
    lack some.
    """
    files = {file: gpu for gpu in conf.topology.gpus if (file := device_file(gpu))}
    printed = [conf.line(gpu) for gpu in files.values()]
    slurms = []
    for entry in slurmd.entries:
        for file in entry.files:
            gpu = files.get(file)
            line = str(entry._replace(files=(file,)))
            if gpu is None:
                is_foreign = not conf.unknown and not (entry.is_slice and MIG_FILES in file)
                slurms += [line] if is_foreign else []
                continue
            if _fits(conf, gpu, entry):
                line = conf.line(gpu)
            if not (entry.is_slice and line in slurms):  # one GPU may have several instances
                slurms.append(line)
    if conf.has_several_types:  # then Slurm's order is that of the types
        slurms.sort()
        printed.sort()
    names = "slurmd -G", "affinityd slurm gres-conf"
    return [*difflib.unified_diff(slurms, printed, *names, lineterm="", n=len(printed))]


def _fits(conf: GresConf, gpu: Gpu, entry: GresEntry) -> bool:
    """Whether an entry is as a GPU's line: cores of its package do, too.

    slurmd drops types, and says so, where Gres= has none. A GPU of an unknown NUMA node has no
    right cores.
    """
    affinity = conf.affinities[gpu.key]
    has_types = any(conf.gres or conf.named) and not entry.is_slice
    return (
        entry.name == "gpu"
        and (not has_types or entry.kind == conf.types.of.get(gpu.key, entry.kind))
        and (not affinity.near or entry.cores in {affinity.right, *affinity.near})
    )
