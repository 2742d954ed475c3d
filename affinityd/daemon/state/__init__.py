"""The daemon's knowledge of its node, kept current."""
