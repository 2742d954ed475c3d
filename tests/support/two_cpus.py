"""Two CPUs for tests that place processes: the cases are written for two, on any machine."""

import os


def keep_two_cpus() -> None:
    """Limit this process, and those that it starts, to the first two of its CPUs."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
