"""What uvicorn lacks: bounds of connections, heads and bodies, and remembered answers."""
