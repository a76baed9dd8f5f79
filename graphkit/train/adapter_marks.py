"""Metadata keys that mark models with adapters, and the names of adapter files."""

from __future__ import annotations

from graphkit.ir.graph import Graph, Value

# In the metadata of a model, the value is a JSON object with the settings of the adapters. In a node that adds an
# adapter to a layer, the value is the name of the layer.
LORA = "graphkit.lora"
# Attribute of parameters that are frozen because the model has adapters.
FROZEN_BY = "frozen_by"
# The files of adapters, as peft names them.
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def has_adapters(graph: Graph) -> bool:
    return LORA in graph.meta


def frozen_parameters(graph: Graph) -> set[Value]:
    return {v for v in graph.inputs if v.attrs.get(FROZEN_BY) == LORA}
