"""Elementwise operators, alone and fused, as programs that every device has a machine for."""
