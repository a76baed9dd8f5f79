"""gk.prune: set weights of small magnitude to 0."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import GraphkitWarning, UnsupportedError, UsageError
from graphkit.ir.magnitudes import Pattern
from graphkit.loading import load
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed
from graphkit.transforms.rewritten import Rewritten, message_of

if TYPE_CHECKING:
    from graphkit.onnx_io.pruning import PrunedWeight, Pruner
    from graphkit.onnx_io.quantise.layers import Kept

SCOPES = ("global", "layer")
_PATTERN = re.compile(r"(\d{1,4}):(\d{1,4})", re.ASCII)


@dataclass(frozen=True)
class Pruned(Rewritten):
    """A pruned model.

    Attributes:
        weights: The pruned weights, with their numbers of zeros.
        kept: Convolutions and matrix products that are not pruned: name, operator and reason.
        masks: Booleans by parameter name: False where the weight was pruned. Pass them to `gk.Trainer(masks=...)` to
            train `model` further.
        notes: Sentences about the model, for example that a weight contains only zeros.
    """

    weights: tuple[PrunedWeight, ...] = ()
    kept: tuple[Kept, ...] = ()
    masks: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    notes: tuple[str, ...] = ()
    source: Model | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def model(self) -> Model:
        """The pruned model as a Model. If `prune` was called with a Model, it has the same graph."""
        if self.source is None or not self.masks.keys() <= set(self.source.params):
            with warnings.catch_warnings():
                # Reading the original has given these warnings already.
                warnings.simplefilter("ignore", GraphkitWarning)
                return load(self.message)
        params = self.source.params
        new = {name: np.where(mask, params[name], params[name].dtype.type(0)) for name, mask in self.masks.items()}
        arrays = {name: np.array(params[name]) for name in params}
        return Model.from_graph(self.source.graph, {**arrays, **new}, meta=self.source.meta)

    def trained(self) -> Pruned:
        """Return the pruned model with the present parameters of `model`, for example after training.

        If the trainer has moving averages, call this in `with trainer.averaged():`.

        Raises:
            UsageError: A pruned weight is not 0 any more.
        """
        from graphkit.onnx_io.editing.reading import contents
        from graphkit.onnx_io.pruning import with_arrays

        params, weights = self.model.params, []
        for weight in self.weights:
            array, mask = np.asarray(params[weight.name]), self.masks[weight.name]
            if np.any(array[~mask]):
                raise UsageError(
                    f"weight {weight.name!r} is not 0 any more where it was pruned: train with masks=pruned.masks"
                )
            weights.append(replace(weight, zeros=int(array.size - np.count_nonzero(array))))
        message = with_arrays(self.message, {name: np.asarray(params[name]) for name in params})
        return replace(self, message=message, after=contents(message), weights=tuple(weights), source=None)

    @property
    def sparsity(self) -> float:
        """The share of zeros in the pruned weights."""
        return sum(w.zeros for w in self.weights) / sum(w.size for w in self.weights)

    def as_dict(self) -> dict[str, Any]:
        """Return the weights, and the content before and after, as plain data, for JSON."""
        return {
            "sparsity": self.sparsity,
            "weights": [{**vars(weight), "layers": list(weight.layers)} for weight in self.weights],
            "kept": [kept._asdict() for kept in self.kept],
            "notes": list(self.notes),
            **super().as_dict(),
        }


@typed("gk.prune")
def prune(
    model: Model | str | os.PathLike[str],
    sparsity: float | None = None,
    *,
    pattern: str | None = None,
    scope: str = "global",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    external_root: str | os.PathLike[str] | None = None,
) -> Pruned:
    """Set the weights of smallest magnitude to 0, in convolutions and matrix products.

    Give either `sparsity` or `pattern`. The weights of Conv, ConvTranspose, Gemm and MatMul are pruned if they are
    constant. Biases and all other parts of an ONNX file stay. The file does not get smaller, and graphkit does not
    compute with fewer operations: see docs/prune.md.

    Args:
        model: A Model, which is not changed; or an ONNX or JSON file, or a run folder.
        sparsity: Share of the weights that become 0, above 0 and below 1. The number of zeros is rounded.
        pattern: "N:M", such as "2:4": of M consecutive weights along the axis that the layer sums over, the N largest
            stay. For a convolution, these are M input channels.
        scope: "global": `sparsity` is the share of all pruned weights together. "layer": of each weight.
        include: Patterns of names or operators of the layers to prune, such as "layer1*" or "Conv". Default: all.
        exclude: Patterns of names or operators of layers that are not pruned.
        external_root: A second folder from which external data of an .onnx file may be read.

    Returns:
        The pruned model, with masks for `gk.Trainer(masks=...)`.

    Raises:
        UnsupportedError: No layer can be pruned, or no weight would become 0. The message says why.
        UsageError: An argument is wrong, or a pattern of names fits no node.
    """
    from graphkit.onnx_io.editing.reading import contents
    from graphkit.onnx_io.pruning import Pruner
    from graphkit.onnx_io.quantise.layers import Choice, functions_with_layers

    groups = _checked(sparsity, pattern, scope)
    label = model.name if isinstance(model, Model) else os.fspath(model)
    original = message_of(model, external_root)
    pruner = Pruner(original, Choice(tuple(include), tuple(exclude)), label)
    if groups is not None:
        masks = pruner.pattern_masks(groups)
    else:
        assert sparsity is not None
        masks = pruner.masks(sparsity, globally=scope == "global")
    _require_weights(pruner, label)
    message, weights = pruner.write(masks)
    if all(weight.zeros == weight.zeros_before for weight in weights):
        share = sum(weight.zeros for weight in weights) / sum(weight.size for weight in weights)
        more = "give a larger sparsity (--sparsity)" if groups is None else "they fit the pattern (--pattern)"
        raise UnsupportedError(f"{label}: no weight would become 0: {share:.1%} are 0 already; {more}")
    notes = [f"{w.name} ({listed(w.layers, len(w.layers))}) contains only zeros" for w in weights if w.zeros == w.size]
    if inside := functions_with_layers(original):
        notes.append(f"layers inside functions are not pruned: {listed(inside, len(inside))}")
    return Pruned(
        original, message, contents(original), contents(message), weights, tuple(pruner.kept), masks, tuple(notes),
        model if isinstance(model, Model) else None,
    )  # fmt: skip


def _checked(sparsity: float | None, pattern: str | None, scope: str) -> Pattern | None:
    """Return the pattern, or None. Raises UsageError for arguments that are wrong or exclude each other."""
    if scope not in SCOPES:
        raise UsageError(f"scope (--scope) must be {' or '.join(SCOPES)}, not {scope!r}")
    if (sparsity is None) == (pattern is None):
        raise UsageError("give either sparsity (--sparsity) or pattern (--pattern)")
    if sparsity is not None:
        if not 0 < sparsity < 1:
            raise UsageError(f"sparsity (--sparsity) must be above 0 and below 1, not {sparsity:g}")
        return None
    found = _PATTERN.fullmatch(pattern or "")
    if found is None or not 0 < int(found[1]) < int(found[2]):
        raise UsageError(f"pattern (--pattern) must be N:M with 0 < N < M, such as 2:4, not {pattern!r}")
    if scope != "global":
        raise UsageError("scope (--scope) only works with sparsity (--sparsity): a pattern applies to each weight")
    return Pattern(int(found[1]), int(found[2]))


def _require_weights(pruner: Pruner, label: str) -> None:
    """Raise UnsupportedError if no weight can be pruned."""
    if pruner.weights:
        return
    if not pruner.kept:
        raise UnsupportedError(
            f"{label}: nothing to prune: the model has no Conv, ConvTranspose, Gemm or MatMul in float"
        )
    reasons: dict[str, list[str]] = {}
    for kept in pruner.kept:
        reasons.setdefault(kept.reason, []).append(f"{kept.name} ({kept.operator})")
    text = "; ".join(f"{listed(names, len(names))}: {reason}" for reason, names in reasons.items())
    raise UnsupportedError(f"{label}: nothing could be pruned. {text}")
