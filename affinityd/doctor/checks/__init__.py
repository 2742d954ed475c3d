"""What the doctor looks for: a file a family of checks."""
