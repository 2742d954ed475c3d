"""Checks of the documentation: `scripts/docs-check`."""
