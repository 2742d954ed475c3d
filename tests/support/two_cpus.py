"""Limits tests that place processes to two CPUs, for which their cases are written."""

import os


def keep_two_cpus() -> None:
    """Limit this process, and those that it starts, to the first two of its CPUs."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
