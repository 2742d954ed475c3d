"""affinityd: on which CPUs, and which memory, each GPU rank belongs."""

__version__ = "0.1.0"
