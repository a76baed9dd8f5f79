"""Images: decoding, resizing, random changes in training, and conversion to numbers."""
