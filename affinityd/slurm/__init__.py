"""A node's GPUs in Slurm: the lines of gres.conf, what slurmd makes of them, and jobs' CPUs."""
