"""A node's GPUs in Slurm: lines of gres.conf, slurmd's reading of them, and jobs' CPUs."""
