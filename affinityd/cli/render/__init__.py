"""Documents as tables and trees."""
