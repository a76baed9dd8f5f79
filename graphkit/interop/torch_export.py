"""Export a PyTorch module to ONNX with PyTorch's own exporter, so that gradients stop where PyTorch's stop."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkit.errors import InputError, MissingDependency, UnsupportedError, UsageError
from graphkit.ir.names import Names
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import shown
from graphkit.text import listed

# The name of the batch dimension if the caller names none.
BATCH = "N"


# Operators that draw random numbers in training and evaluation alike. Dropout draws in training only.
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip


class Export(NamedTuple):
    """An exported module.

    Attributes:
        program: The torch.onnx.ONNXProgram.
        detached: Names of the Identity nodes at which the gradient stops.
        outputs: A name for each output, from the structure that `forward` returns.
    """

    program: Any
    detached: frozenset[str]
    outputs: tuple[str, ...]

    @property
    def draws(self) -> int:
        """The number of nodes that draw random numbers, without Dropout."""
        return sum(node.op_type in _RANDOM for node in self.program.model.graph.all_nodes())


def require(*modules: str, task: str, command: str) -> None:
    """Raise MissingDependency unless all modules are installed. Its message begins with `task`, and ends with the
    command that installs them.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(f"{task} needs {listed(missing, len(missing), 5)}; install with: {command}")


def export(module: Any, example_inputs: Any, dynamic_shapes: Any, train: bool) -> Export:
    """Export a module in training or evaluation mode. The mode of the module and its parts does not change.

    Raises InputError if `forward` does not accept the inputs, UnsupportedError if PyTorch cannot export the module.
    """
    torch = importlib.import_module("torch")
    _check_names(module)
    args, kwargs = _example(torch, example_inputs, repeat=dynamic_shapes is None)
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"from_torch: forward of {type(module).__name__} does not accept example_inputs: {error}"
        ) from None
    shapes = _free_first_axes(torch, args, kwargs) if dynamic_shapes is None else _opened(torch, dynamic_shapes)
    if dynamic_shapes is None:
        shapes = shapes.dynamic_shapes(module, args, kwargs)
    # The number of steps varies only if the caller says so.
    recurrences = contextlib.nullcontext() if dynamic_shapes is None else _whole_recurrences(torch, module)
    with _in_mode(module, train), warnings.catch_warnings(), _explaining(module), recurrences:
        warnings.simplefilter("ignore")  # about the exporter's own code, and about training mode
        exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
        _check_buffers(module, exported)
        _check_results(module, exported)
        _stop_gradients(torch, exported)
        program = torch.onnx.export(exported, dynamo=True, optimize=False, verbose=False)
    outputs = _output_names(torch, exported)
    _rename_results(program)
    _name_dimensions(program, dynamic_shapes, (args, kwargs))
    detached = frozenset(
        node.name for node in program.model.graph
        if "aten.detach." in str(node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
    )  # fmt: skip
    return Export(program, detached, outputs)


# --- inputs ---------------------------------------------------------------------------------------------


def _example(torch: Any, given: Any, repeat: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `forward`.

    repeat: whether a batch of one sample is repeated. The exporter treats a size of 1 as a constant.
    """
    if isinstance(given, Mapping):
        args, kwargs = (), dict(given)
    else:
        args, kwargs = tuple(given) if isinstance(given, (tuple, list)) else (given,), {}
    tree = torch.utils._pytree
    tensors = [leaf for leaf in tree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise InputError(
            f"from_torch: example_inputs must be a tensor, a tuple of the arguments of forward, or a dict by name, not "
            f"{shown(given)}"
        )
    batched = [t for t in tensors if t.ndim]
    if not repeat or not batched or any(t.shape[0] != 1 for t in batched):
        return args, kwargs
    doubled = {id(t): torch.cat([t, t]) for t in batched}
    found = tree.tree_map(lambda leaf: doubled.get(id(leaf), leaf), (args, kwargs))
    return found[0], found[1]


def _free_first_axes(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the dynamic shapes in which the first axis of each tensor may have any size that the module allows."""
    shapes = torch.export.ShapesCollection()
    for leaf in torch.utils._pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            shapes[leaf] = {0: torch.export.Dim.AUTO}
    return shapes


def _opened(torch: Any, spec: Any) -> Any:
    """Return dynamic shapes in which names stand for any size, as torch.export expects them."""
    if isinstance(spec, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(spec, Mapping):
        return {key: _opened(torch, inner) for key, inner in spec.items()}
    if isinstance(spec, (tuple, list)):
        return type(spec)([_opened(torch, inner) for inner in spec])
    return spec


def _name_dimensions(program: Any, dynamic_shapes: Any, example: Any) -> None:
    """Name the symbolic dimensions of the exported graph: as the caller did, and by default `N` for the batch."""
    inputs = program.model.graph.inputs
    names: dict[str, str] = {}
    if dynamic_shapes is None:
        for value in inputs:
            if value.shape is None or not len(value.shape):
                continue
            symbol = _size(value, 0)
            if symbol.isdigit():
                _check_free(value.name, int(symbol))
            else:
                names.setdefault(symbol, BATCH if not names else f"{BATCH}_{value.name}")
    elif isinstance(dynamic_shapes, Mapping) or len(dynamic_shapes) == len(inputs):
        specs = (
            dynamic_shapes
            if isinstance(dynamic_shapes, Mapping)
            else dict(zip((value.name for value in inputs), dynamic_shapes, strict=True))
        )
        for value in inputs:
            spec = specs.get(value.name)
            pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
            for axis, size in pairs:
                name = size if isinstance(size, str) else getattr(size, "__name__", None)
                if name and value.shape is not None and not _size(value, axis).isdigit():
                    names.setdefault(_size(value, axis), name)
    if names:
        _rename_dimensions(program, names)


def _size(value: Any, axis: int) -> str:
    """Return a size of a value as text: a number, a symbol, or an expression."""
    size = value.shape[axis]
    return str(size if isinstance(size, int) else size.value)


def _check_free(name: str, size: int) -> None:
    if size != 1:
        raise UsageError(
            f"from_torch: the module fixes the first axis of input {name!r} at {size}, so it is not the batch. Pass "
            f"dynamic_shapes, for example {{'{name}': {{1: 'N'}}}} for the axes that vary, or {{'{name}': None}} for "
            "fixed sizes"
        )


def _rename_results(program: Any) -> None:
    """Rename results that have the name of a parameter. The exporter writes both under one name."""
    graph = program.model.graph
    names = Names([*(value.name for value in graph.inputs), *graph.initializers])
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name:
                value.name = names.take(value.name)


def _rename_dimensions(program: Any, names: Mapping[str, str]) -> None:
    onnx_ir = importlib.import_module("onnx_ir")
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    graph = program.model.graph
    values = [*graph.inputs, *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([
                size if isinstance(size, int) or size.value is None
                else pattern.sub(lambda found: names[found.group()], str(size.value))
                for size in value.shape
            ])  # fmt: skip


# --- the module -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _in_mode(module: Any, train: bool) -> Iterator[None]:
    """Context in which the module is in training or evaluation mode. Afterwards, each part has its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    # The exporter writes dropout in place as random numbers and products, not as Dropout.
    in_place = [part for part, _ in modes if "Dropout" in type(part).__name__ and getattr(part, "inplace", False)]
    module.train(train)
    try:
        for part in in_place:
            part.inplace = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for part in in_place:
            part.inplace = True


@contextlib.contextmanager
def _explaining(module: Any) -> Iterator[None]:
    """Context in which errors of PyTorch's exporter become UnsupportedError with the exporter's reason."""
    try:
        yield
    except (UnsupportedError, UsageError):
        raise
    except Exception as error:
        raise UnsupportedError(
            f"from_torch: torch.onnx cannot export {type(module).__name__}: {_reason(error)}. The exporter's whole "
            "report is the cause of this error"
        ) from error


@contextlib.contextmanager
def _whole_recurrences(torch: Any, module: Any) -> Iterator[None]:
    """Context in which LSTM and GRU are exported for any number of steps. Without it, their length would be fixed.

    torch.onnx does the same if it exports a module.
    """
    kinds = {
        "lstm": (torch.nn.LSTM, torch.ops.aten.lstm.input),
        "gru": (torch.nn.GRU, torch.ops.aten.gru.input),
    }
    with contextlib.ExitStack() as stack:
        for name, (layer, operator) in kinds.items():
            if not any(isinstance(part, layer) for part in module.modules()):
                continue
            patches = importlib.import_module("torch.export._patches")
            # PyTorch remembers how it ran the operator, and for which lengths: forget this now and afterwards.
            stack.callback(operator._dispatch_cache.clear)
            stack.callback(torch._dynamo.reset)
            operator._dispatch_cache.clear()
            torch._dynamo.reset()
            stack.enter_context(getattr(patches, f"register_{name}_while_loop_decomposition")())
        yield


def _reason(error: BaseException) -> str:
    """Return the innermost error of the exporter in one line, with the line of the user's code if it is known."""
    place = next(
        (m for e in _chain(error) if (m := re.search(r'File "([^"]+)", line (\d+), in forward', str(e)))), None
    )
    *_, inner = _chain(error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    text = re.sub(r"\x1b\[\d*m", "", lines[0] if lines else type(inner).__name__).rstrip(". ")
    return f"{text} (in forward, {place.group(1)}:{place.group(2)})" if place else text


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _check_names(module: Any) -> None:
    """Raise UnsupportedError if a parameter or buffer has the name of an argument: the exporter takes one for the
    other.
    """
    arguments = inspect.signature(module.forward).parameters
    stored = (*dict(module.named_parameters(recurse=False)), *dict(module.named_buffers(recurse=False)))
    if both := [name for name in stored if name in arguments]:
        raise UnsupportedError(
            f"from_torch: {both[0]!r} is the name of an argument of forward and of a parameter or buffer; rename one"
        )


def _check_buffers(module: Any, exported: Any) -> None:
    """Raise UnsupportedError if `forward` changes a buffer that is not a running statistic."""
    # Without decompositions, this only shows which buffers are written.
    changed = exported.run_decompositions({}).graph_signature.buffers_to_mutate.values()
    own = running_statistics(module)
    if others := sorted(set(changed) - own):
        changes = listed(map(repr, others), len(others), 5)
        raise UnsupportedError(
            f"from_torch: forward of {type(module).__name__} changes {changes}. A model updates only the "
            "running statistics of batch normalisation. Export with train=False, or keep the buffer constant"
        )


def _check_results(module: Any, exported: Any) -> None:
    """Raise UnsupportedError if `forward` returns a value that is not a tensor, None, or a size of a tensor."""
    for spec in exported.graph_signature.output_specs:
        value = getattr(spec.arg, "value", None)
        if type(spec.arg).__name__ == "ConstantArgument" and value is not None:
            kind = type(value).__name__
            article = "an" if kind[0] in "aeiou" else "a"
            raise UnsupportedError(
                f"from_torch: forward returns {article} {kind} ({shown(value)}); an output of {type(module).__name__} "
                "must be a tensor or None. Leave it out of what forward returns, or make it a tensor"
            )


def running_statistics(module: Any) -> set[str]:
    """Return the names of the running statistics of all batch normalisations, and of their counts of batches."""
    return {
        f"{name}.{buffer}" if name else buffer
        for name, part in module.named_modules()
        if getattr(part, "track_running_stats", False)
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    }


def _stop_gradients(torch: Any, exported: Any) -> None:
    """Add a `detach` after each block that runs under torch.no_grad(), because the exporter removes the block."""
    graph = exported.graph
    for block in list(graph.nodes):
        if getattr(block.target, "__name__", "") != "wrap_with_set_grad_enabled" or block.args[0]:
            continue
        for result in list(block.users):
            readers = [user for user in result.users if user.op != "output"]
            if not readers:
                continue
            with graph.inserting_after(result):
                stopped = graph.call_function(torch.ops.aten.detach.default, (result,))
            stopped.meta = dict(result.meta)
            for reader in readers:
                reader.replace_input_with(result, stopped)
    exported.graph_module.recompile()


def _output_names(torch: Any, exported: Any) -> tuple[str, ...]:
    """Return a name for each tensor that `forward` returns: keys and positions, such as `logits` or `output_1`."""
    tree = torch.utils._pytree
    spec = exported.call_spec.out_spec
    paths, _ = tree.tree_flatten_with_path(tree.tree_unflatten(list(range(spec.num_leaves)), spec))
    kept = [s.arg for s in exported.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
    names = []
    for (path, _), arg in zip(paths, kept, strict=True):
        if type(arg).__name__ != "TensorArgument":
            continue  # None, or a number
        keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
        text = "_".join(keys)
        names.append(text if text and not text[0].isdigit() else "_".join(["output", *keys]))
    return tuple(names)
