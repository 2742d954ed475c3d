"""Pinning from outside: drift of GPU jobs found and, where an operator says so, mended."""
