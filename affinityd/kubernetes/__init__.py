"""Pods: what kubelet, NRI and the pods themselves give their containers."""
