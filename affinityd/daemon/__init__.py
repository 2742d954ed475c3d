"""The daemon: what `affinityd serve` runs. Needs the extra `daemon`."""
