"""A report on the jobs of a fleet, by the series that a Prometheus has of the daemons."""
