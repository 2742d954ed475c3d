"""A machine, and a plan on it, as a picture: SVG for the daemon's page, tickets and papers."""
