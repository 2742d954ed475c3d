"""The machine as the planner sees it."""
