"""The doctor: named checks of a node, each with its remedy."""
