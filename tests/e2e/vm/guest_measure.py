"""Runs in the virtual machine: measures some of its nodes.

Memory is real; NVIDIA's driver is made (inside.py), and its CUDA has one GPU, whose memory is the
host's.
"""

import os

from tests.e2e.vm import inside
from tests.e2e.vm.hardware import BARE_NODE, GPU_NODES, cpus_of
from tests.e2e.vm.inside import AFFINITYD, Document, Ended, cgroup, ran, stage

MEASURED = 2  #: the GPU that CUDA shows
NODES = (0, GPU_NODES[MEASURED], BARE_NODE)  #: those in the cpuset


def main() -> Document:
    inside.bring("31", online=True)
    inside.have_driver()
    inside.tell({})
    os.environ["GPU_ADDRESS"] = inside.addresses()[MEASURED]
    cpuset = cgroup("job", cpus=",".join(map(cpus_of, NODES)))
    stage("the measurement")
    return measured(f"{cpuset}/cgroup.procs")


def measured(procs: str) -> Ended:
    """Return what the command said, once NVML has answered in time: an emulated CPU is slow."""
    join = ("sh", "-c", f'echo 0 > {procs} && exec "$@"', "sh")
    ended = ran((*join, *AFFINITYD, "measure", "--json"))
    while "NVML did not answer" in ended["stdout"]:
        ended = ran((*join, *AFFINITYD, "measure", "--json"))
    return ended
