"""Reports about training: an HTML page with curves and predictions, and TensorBoard event files."""
