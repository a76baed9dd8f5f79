"""Version rules of export: a node of the canonical opset becomes one of an older target, family by family.

Two kinds. A rewrite replaces a node by other nodes of the graph (`rewrites`); it runs before anything is written.
A spelling changes how a node is written: input to attribute, another attribute value (`spells`). Both are declared
for the target opsets below which they apply; spellings of one operator run newest first.
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
