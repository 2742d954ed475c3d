"""What the kernel tells and takes: /proc, /sys, cgroups, affinity, memory policies."""
