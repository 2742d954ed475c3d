"""What Slurm is told of a node, gres.conf(5) and slurm.conf(5), and what it makes of it."""
