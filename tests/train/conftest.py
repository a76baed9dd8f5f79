"""Fixtures that all tests of training share."""

from resident import small_process

__all__ = ["small_process"]
