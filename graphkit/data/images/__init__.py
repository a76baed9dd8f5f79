"""Pictures: decoded, brought to one size, changed at random in training, and turned into numbers."""
