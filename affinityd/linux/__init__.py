"""The kernel's interfaces: /proc, /sys, cgroups, affinity, memory policies."""
