"""All tests of processes run on two CPUs."""

from tests.support.two_cpus import keep_two_cpus

keep_two_cpus()
