"""Pods: what their containers are given, by kubelet, by NRI and by themselves."""
