"""What takes elements from other places along each axis: padding, resizing, and their gradients."""
