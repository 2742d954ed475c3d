"""Grafana's dashboards, written by `scripts/dashboards` with Grafana's own models of them."""
