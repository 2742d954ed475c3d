"""What this machine's Slurm says of a node: slurmd of its GPUs, slurmctld of its Gres=."""
