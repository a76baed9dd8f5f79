"""What a click.Context's `meta` has of the command line."""

from __future__ import annotations

# All arguments, for commands that start others like themselves.
ARGUMENTS = "graphkit.arguments"
