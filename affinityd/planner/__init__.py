"""From a demand to a plan. Pure."""
