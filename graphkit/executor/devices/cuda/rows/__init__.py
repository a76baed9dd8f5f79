"""Kernels over rows, or over groups along any axes: reductions, normalisations, losses, scans, TopK."""
