"""Operators of network layers: convolution, pooling, attention, normalisation, activations, losses."""
