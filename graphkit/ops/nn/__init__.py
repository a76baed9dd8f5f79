"""Layers of networks: convolution, pooling, attention, normalisation, activations, losses."""
