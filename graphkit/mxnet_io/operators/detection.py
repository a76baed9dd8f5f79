"""Anchors of detectors, and the choice of detections among overlapping boxes."""
