"""Running processes against their GPUs: who holds one, where it may run, and what that costs."""
