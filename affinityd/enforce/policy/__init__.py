"""The policy of enforcement: which processes it selects, and how they are treated."""
