"""What slurmctld and slurmd were configured with: slurm.conf, gres.conf, scontrol."""
