"""What a library says of work that it cannot do on a card."""

from __future__ import annotations

from graphkit.errors import RuntimeFailure


class NoWay(RuntimeFailure):
    """The library computes nothing of this kind, or of these sizes, on this card."""
