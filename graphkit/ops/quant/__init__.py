"""Numbers of few bits: linear quantisation, and convolutions and products of quantised operands."""
