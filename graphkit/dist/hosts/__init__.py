"""Which processes share a host: where they compute, what they exchange there, and signs of life."""
