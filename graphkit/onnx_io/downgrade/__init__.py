"""Version rules of export: a node of the canonical opset becomes one of an older target, family by family.

There are two kinds of rules. A rewrite (`rewrites`) replaces a node by other nodes of the graph, before anything is
written. A spelling (`spells`) changes how a node is written: an input becomes an attribute, or an attribute gets
another value. Each rule is declared for the target opsets below a version. Spellings of an operator are applied newest
first.
"""

from __future__ import annotations

import importlib
import pkgutil

from graphkit.onnx_io.downgrade._rules import (
    ALWAYS,
    Rewrite,
    Site,
    Spell,
    Spelling,
    constant_array,
    rewrites,
    rewritten,
    spell,
    spells,
)

__all__ = [
    "ALWAYS",
    "Rewrite",
    "Site",
    "Spell",
    "Spelling",
    "constant_array",
    "rewrites",
    "rewritten",
    "spell",
    "spells",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
