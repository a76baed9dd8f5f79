"""Sequences of values, and optionals, which hold a value or nothing."""
