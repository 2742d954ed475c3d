"""The other end of a connection."""
