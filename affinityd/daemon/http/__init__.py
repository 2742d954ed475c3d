"""Additions to uvicorn: limits of connections, heads and bodies, and cached answers."""
