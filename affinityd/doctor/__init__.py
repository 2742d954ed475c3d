"""What keeps ranks from their place on a node: named checks, each with what mends it."""
