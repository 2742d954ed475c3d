"""The client: find a plan, check its source, apply it."""
