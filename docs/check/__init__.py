"""Checks of the documentation and of all messages: `scripts/docs-check`, `scripts/messages`."""
