"""Devices and their kernels."""
