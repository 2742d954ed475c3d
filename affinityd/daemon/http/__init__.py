"""What uvicorn lacks: limits of connections, heads and bodies, and cached answers."""
