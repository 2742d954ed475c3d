"""The files of a pod with which its containers pin themselves."""
