"""What a pod is given, so that its containers find their place by themselves."""
