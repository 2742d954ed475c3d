"""Settings: the file, the environment, the command line."""
