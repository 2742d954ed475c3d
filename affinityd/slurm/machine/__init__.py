"""This node in the terms of Slurm: its cores, device files and links."""
