"""Sources of holders: drivers and device files."""
