"""What all tests of processes share."""

from tests.support.two_cpus import keep_two_cpus

keep_two_cpus()
