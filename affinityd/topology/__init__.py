"""The machine as it is planned on."""
