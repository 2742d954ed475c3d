"""A rank fills memory, prints the kernel's facts about this memory, and ends with its stdin."""

import sys
from pathlib import Path

SIZE = 32 << 20  #: bytes

filled = b"\1" * SIZE
mappings = Path("/proc/self/numa_maps").read_text(encoding="ascii").splitlines()
largest = max(mappings, key=lambda line: int((line.partition(" anon=")[2] or "0").split()[0]))
sys.stdout.write(f"{largest}\n")
sys.stdout.flush()
sys.stdin.read()
