"""Quantised graphs in integers: what lies between DequantizeLinear and QuantizeLinear as operators on 8-bit numbers."""
