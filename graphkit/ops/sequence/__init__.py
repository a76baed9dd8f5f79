"""Operators on sequences of values, and on optionals, which contain a value or nothing."""
