"""Passes that choose the order of axes and the types in which kernels compute."""
