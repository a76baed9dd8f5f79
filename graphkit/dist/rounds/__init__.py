"""What processes do together, in an order that they agree upon."""
