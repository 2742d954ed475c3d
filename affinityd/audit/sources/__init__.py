"""Which processes hold a GPU: by drivers, by device files."""
