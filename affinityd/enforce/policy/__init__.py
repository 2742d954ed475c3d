"""The policy of enforcement: which processes it names, and how it treats them."""
