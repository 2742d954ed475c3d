"""What a rank runs: find a plan, believe it, apply it."""
