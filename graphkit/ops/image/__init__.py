"""Operators on images: decode, resize, resample, crop, pool by region."""
