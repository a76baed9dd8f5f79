"""What moves elements: copies along strides, and by index, there and back."""
