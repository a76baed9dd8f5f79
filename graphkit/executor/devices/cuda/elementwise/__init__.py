"""What computes each element for itself: pointwise regions, fills, random numbers, guards."""
