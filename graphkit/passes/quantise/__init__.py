"""Run quantised graphs with integers: convert operators between DequantizeLinear and QuantizeLinear to 8-bit ones."""
