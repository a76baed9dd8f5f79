"""Images resampled, cropped and pooled by region."""
