"""What a pod is given, so that its containers can pin themselves."""
