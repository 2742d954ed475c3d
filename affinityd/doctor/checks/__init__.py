"""The checks, one file for each family."""
