"""A node's GPUs in Slurm: lines of gres.conf, how slurmd reads it, and the CPUs of jobs."""
