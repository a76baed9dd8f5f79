"""What training did, for people: a page of curves and predictions, and event files of TensorBoard."""
