"""Tasks: each file makes the examples of one family."""
