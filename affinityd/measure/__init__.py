"""Measurements of memory and GPUs from each NUMA node: near against far."""
