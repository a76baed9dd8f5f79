"""What goes over rows, or groups along any axes: reductions, normalisations, losses, orders."""
