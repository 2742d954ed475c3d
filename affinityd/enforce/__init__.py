"""Enforcement: drifted processes of GPU jobs are found and, if an operator says so, pinned."""
