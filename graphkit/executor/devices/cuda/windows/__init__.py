"""What slides windows over images: pools, convolutions and their gradients."""
