"""NVIDIA's libraries: what they compute is described in `launches`, and prepared here for a card."""
