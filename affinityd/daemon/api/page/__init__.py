"""The node's page: what a browser gets of a daemon."""
