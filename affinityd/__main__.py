"""`python -m affinityd` is `affinityd`."""

from affinityd.cli import entry

entry()
