"""Apply a model to many samples: predictions, and their evaluation."""
