"""Kernels with sliding windows over images: pooling, convolutions and their gradients."""
