"""Name scopes and attribute scopes: prefixes and attributes for all nodes and parameters made inside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from graphkit.errors import UsageError
from graphkit.ir import context

# Attributes of parameters that graphkit reads; an attribute scope must not set them.
RESERVED_ATTRS = ("init", "trainable")


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Put `name/` before the names of layers, nodes, inputs and parameters created in a `with` block. Blocks nest.

    Yields the whole prefix. Unnamed nodes stay unnamed. Raises UsageError for an empty name.

        with gk.name_scope("block1"):
            h = gk.nn.linear(x, 10, name="fc")     # parameters block1/fc_weight, block1/fc_bias
    """
    if not isinstance(name, str) or not name.strip("/"):
        raise UsageError(f"a name scope needs a name, not {name!r}")
    outer = context.current()
    with context.entered(outer._replace(prefix=f"{outer.prefix}{name.strip('/')}/")) as scope:
        yield scope.prefix


@contextlib.contextmanager
def attr_scope(**attrs: Any) -> Iterator[dict[str, str]]:
    """Attach attributes, as text, to nodes and parameters created in a `with` block; inner blocks take precedence.

    Nodes store them in `meta`, parameters in `attrs` (`attr_scope(lr_mult="0.1")`). Yields all attributes that apply
    inside. Raises UsageError for names that graphkit itself uses.
    """
    taken = [key for key in attrs if key in RESERVED_ATTRS]
    if taken:
        raise UsageError(f"attr_scope cannot set {taken[0]!r}: give it to the layer or to gk.parameter")
    outer = context.current()
    merged = {**outer.attrs, **{key: str(value) for key, value in attrs.items()}}
    with context.entered(outer._replace(attrs=merged)):
        yield merged
