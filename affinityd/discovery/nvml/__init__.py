"""NVIDIA's library: the only importer of pynvml."""
