"""Linear quantisation, and convolutions and matrix products of quantised operands."""
