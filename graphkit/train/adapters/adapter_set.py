"""gk.AdapterSet: one compiled model with several adapters. Each run uses one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.model import Model
from graphkit.passes.core.sweep import rewrite
from graphkit.signatures import typed
from graphkit.text import listed, quantity, short_repr
from graphkit.train.adapter_marks import LORA
from graphkit.train.adapters.adapter import A, B
from graphkit.train.adapters.combine import combined, read_adapter
from graphkit.train.adapters.files import adapter_parameters
from graphkit.train.adapters.folder import SavedAdapter
from graphkit.train.adapters.layers import find_layers, select_layers
from graphkit.train.adapters.lora import adapted
from graphkit.train.adapters.settings import Lora
from graphkit.train.arguments import integer

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice
    from graphkit.executor.run.session import Executor

_OWNER = "gk.AdapterSet"


class AdapterSet:
    """Several LoRA adapters of one model. Each run uses one of them, or none.

    The matrices A and B are inputs of the compiled program. So you can change the adapter without a compilation, and
    all adapters share the weights of the model. Runs with different adapters may run concurrently in several threads.

    All adapters have the same shapes. Adapters of smaller rank are padded with zeros. For a layer that an adapter does
    not change, the matrix B is zero. So every run costs as much as a run with the largest rank.

    Args:
        model: The model without adapters. Its weights may be quantised.
        adapters: Folders by adapter name. A name may have several folders, whose adapters are added (see
            `gk.load_adapter`).
        rank: The largest rank of adapters that `load` adds later (default: that of `adapters`).
        layers: Names or glob patterns of further layers that adapters from `load` may change.
        device: As for `Model.compile`.
        options: Options of `Model.compile`, such as `threads`.

    Attributes:
        model: The model whose inputs include the matrices.
        executor: Its compiled program.

    Raises:
        UsageError: An adapter does not belong to the model, or is a DoRA adapter; or there is no layer to change.
        InvalidModel: A file is damaged, or a tensor has another shape or type than the layer needs.
    """

    @typed(_OWNER)
    def __init__(
        self,
        model: Model,
        adapters: Mapping[str, str | Path | Sequence[str | Path]],
        *,
        rank: int | None = None,
        layers: str | Sequence[str] = (),
        device: AnyDevice = "cpu",
        **options: Any,
    ):
        self._base = model
        self._layers = {layer.name: layer for layer in find_layers(model.graph)[0]}
        saved = {name: self._read(folder, None) for name, folder in adapters.items()}
        patterns = (layers,) if isinstance(layers, str) else layers
        names = dict.fromkeys(layer.name for layer in select_layers(model.graph, patterns, _OWNER))
        names |= dict.fromkeys(name for each in saved.values() for name in each.settings.layers)
        if not names:
            raise UsageError(f"{_OWNER}: give adapters, or the layers that later adapters change (layers=)")
        smallest = 1 if rank is None else integer(_OWNER, "rank", rank, 1)
        size = max([smallest, *(each.settings.rank for each in saved.values())])
        others = dict.fromkeys(name for each in saved.values() for name in each.others)
        self._rank = size
        settings = Lora(rank=size, alpha=float(size), layers=tuple(names))
        self._adapted = adapted(model, settings, tuple(others), seed=0, owner=_OWNER)
        self._defaults = {
            name: _read_only(np.array(self._adapted.params[name])) for name in adapter_parameters(self._adapted)
        }
        if replaced := [name for name in names if f"{name}.{A}" not in self._defaults]:
            raise UsageError(
                f"{_OWNER}: one adapter replaces the weight of layer {replaced[0]!r}, and another one changes the "
                "layer; one set cannot contain both"
            )
        self._arrays = {name: self._padded(each) for name, each in saved.items()}
        self.model = _with_inputs(self._adapted, self._defaults)
        self.executor: Executor = self.model.compile(device, **options)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"rank {self.rank}"
        yield quantity(len(self.names), "adapter")
        yield from map(repr, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the adapters."""
        return tuple(self._arrays)

    @property
    def rank(self) -> int:
        """The largest rank that an adapter may have."""
        return self._rank

    @typed("AdapterSet.load")
    def load(
        self, name: str, folder: str | Path | Sequence[str | Path], *, weights: Sequence[float] | None = None
    ) -> None:
        """Add an adapter, or replace the adapter of this name. Nothing is compiled.

        Args:
            name: Its name.
            folder: A folder or several, as for `gk.load_adapter`.
            weights: A factor for each folder (default: 1).

        Raises:
            UsageError: As for `gk.AdapterSet`; or the rank of the adapter is larger than that of the set; or the set
                lacks a layer or parameter of the adapter.
            InvalidModel: A file is damaged, or a tensor has another shape or type than the layer needs.
        """
        self._arrays[name] = self._padded(self._read(folder, weights))

    @typed("AdapterSet.unload")
    def unload(self, name: str) -> None:
        """Remove an adapter. Raises UsageError if no adapter has this name."""
        self.feeds(name)
        del self._arrays[name]

    @typed("AdapterSet.run")
    def run(
        self, feeds: Mapping[str, Any], adapter: str | None = None, outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Run the model with an adapter; return arrays by output name.

        Args:
            feeds: Arrays by input name.
            adapter: Name of the adapter (default: none, the model as it is).
            outputs: Names of the outputs to compute (default: all).
        """
        return self.executor.run({**feeds, **self.feeds(adapter)}, outputs)

    @typed("AdapterSet.feeds")
    def feeds(self, adapter: str | None = None) -> dict[str, np.ndarray]:
        """Return the arrays of an adapter, read-only, by the names of the inputs of `model`.

        adapter: Its name. None: arrays that change nothing, so the outputs are those of the model without adapters.

        Raises UsageError if no adapter has this name.
        """
        if adapter is None:
            return dict(self._defaults)
        if adapter not in self._arrays:
            raise UsageError(f"AdapterSet: there is no adapter {adapter!r}{did_you_mean(adapter, self._arrays)}")
        return {**self._defaults, **self._arrays[adapter]}

    @typed("AdapterSet.model_with")
    def model_with(self, adapter: str | None = None) -> Model:
        """Return a model with an adapter, padded with zeros to the shapes of this set. It shares the frozen weights.

        The models of all adapters have the same graph, so you need only one ONNX file. Save it from any of the models,
        with `as_inputs=gk.adapter_parameters(model)`. This file accepts the `.onnx_adapter` files of all the models
        (`gk.save_adapter`).

        adapter: Its name; None: an adapter that changes nothing.
        """
        return Model.from_graph(self._adapted.graph, {**self._adapted.params.entries(), **self.feeds(adapter)})

    def _read(self, folder: str | Path | Sequence[str | Path], weights: Sequence[float] | None) -> SavedAdapter:
        """Read the adapter of one folder, or the sum of several, as an adapter of scaling 1."""
        found = read_adapter(self._base, folder, weights, _OWNER, self._layers)
        return combined(self._base, self._layers, [found], [1.0], _OWNER)

    def _padded(self, saved: SavedAdapter) -> dict[str, np.ndarray]:
        if saved.settings.rank > self.rank:
            raise UsageError(
                f"{_OWNER}: the adapter in {saved.folder} has rank {saved.settings.rank}, but the set has room for "
                f"{self.rank}; create it with rank={saved.settings.rank}"
            )
        if missing := [name for name in saved.arrays if name not in self._defaults]:
            raise UsageError(
                f"{_OWNER}: the adapter in {saved.folder} contains {listed(missing, len(missing))}, which the set "
                "lacks; give this adapter, or layers=, when you create the set"
            )
        found = {}
        for name, array in saved.arrays.items():
            axis = 0 if name.endswith(f".{A}") else 1 if name.endswith(f".{B}") else None
            if axis is not None and array.shape[axis] < self.rank:
                widths = [(0, 0)] * array.ndim
                widths[axis] = (0, self.rank - array.shape[axis])
                array = np.pad(array, widths)
            found[name] = _read_only(np.ascontiguousarray(array))
        return found


def _read_only(array: np.ndarray) -> np.ndarray:
    # `AdapterSet.feeds` returns these arrays to the user.
    array.flags.writeable = False
    return array


def _with_inputs(model: Model, names: Mapping[str, Any]) -> Model:
    """Return the model with the parameters `names` as data inputs. It shares all other parameters."""
    graph = model.graph
    table = {v: v.like(name=graph.name_of(v), role="data", attrs={}) for v in graph.inputs if graph.name_of(v) in names}
    made = rewrite(graph, lambda node, operands: None, inputs=table)
    meta = {key: text for key, text in graph.meta.items() if key != LORA}
    params = {name: entry for name, entry in model.params.entries().items() if name not in names}
    return Model.from_graph(made.replace(meta=meta, output_names=graph.output_names), params)
