"""From the text of a request to a demand, and from a plan to the text of its answer. Pure."""
