"""The tasks of a Slurm step on a node: their GPUs, their slices, and what each may take."""
