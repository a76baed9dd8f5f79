"""Quantisation after training: calibration, the public call, and what it changed."""
