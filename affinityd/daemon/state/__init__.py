"""What the daemon knows of its node, and keeps up to date."""
