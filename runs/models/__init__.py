"""Models: each file builds one family of networks."""
