"""Containers of pods: kubelet's data about them, NRI's changes to them, scripts that they run."""
