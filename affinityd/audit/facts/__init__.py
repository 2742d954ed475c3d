"""Processes as they are found: of which job, on which GPUs, on which CPUs."""
