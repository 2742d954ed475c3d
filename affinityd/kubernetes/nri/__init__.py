"""The node resource interface of container runtimes, NRI: adjusts containers that they create."""
