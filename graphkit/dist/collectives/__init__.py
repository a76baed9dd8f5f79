"""Collectives between ranks: of buckets, slices and rows, between GPUs, and with compression."""
