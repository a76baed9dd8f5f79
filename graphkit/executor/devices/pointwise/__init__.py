"""Elementwise operators, alone and fused, as programs that the CPU interprets and that a GPU compiles."""
