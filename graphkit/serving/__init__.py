"""Serve models over HTTP: the Open Inference Protocol, images and texts, dynamic batching."""
