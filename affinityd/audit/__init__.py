"""The audit: which processes use GPUs, where they may run, and the CPU time they spend there."""
