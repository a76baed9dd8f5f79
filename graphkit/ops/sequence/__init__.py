"""Values that are no tensors: sequences of values, and optionals, which hold a value or nothing."""
