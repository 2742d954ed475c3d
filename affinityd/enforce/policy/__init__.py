"""The policy of enforcement: whom it names, and what it wants of them."""
