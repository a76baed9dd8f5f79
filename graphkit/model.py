"""Model and load: a graph with its parameters, connected to files, autodiff and the executor."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import config
from graphkit.collector import without_gc
from graphkit.errors import InputError, InvalidModel, OutOfMemory, UsageError, did_you_mean
from graphkit.executor.run.params import ParamStore
from graphkit.ir import limits
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, Type
from graphkit.signatures import operands_by_name, typed
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from graphkit.backend import Backend
    from graphkit.executor.devices.groups import AnyDevice
    from graphkit.executor.run.session import Executor
    from graphkit.executor.run.state_dict import LoadedNames

# Parameter Value -> the store and the name of its array. Models composed of other models find shared arrays here.
_owners: weakref.WeakKeyDictionary[Value, tuple[ParamStore, str]] = weakref.WeakKeyDictionary()

_STORED_ROLES = ("parameter", "state")

# Keys of the metadata, in JSON and ONNX files: the names of the classes as a JSON list, the vocabulary of a text, the
# preprocessing of images, the encoding of the columns of a table (see graphkit.data.preprocessing), and the largest
# number of tokens of a text.
CLASSES, VOCABULARY, PREPROCESSING, COLUMNS = "classes", "vocabulary", "preprocessing", "columns"
MAX_TOKENS = "max_tokens"
# The file that the vocabulary was read from, for errors. Models without it got theirs from their own metadata.
VOCABULARY_FILE = "vocabulary_file"


class Model:
    """A network: an inference graph and its parameters.

    Args:
        outputs: A Value, a sequence of Values, or a dict from names to Values.
        name: Name of the model.
        inputs: The data inputs. Default: those that the outputs depend on, in the order in which they were made.
        params: Arrays by parameter name.
        seed: Seed of the initialisers (default: GRAPHKIT_SEED). They fill the parameters that `params` lacks.
            Parameters shared with an earlier Model keep their values.
        meta: Metadata that is saved with the model, texts by key.
    """

    @typed("gk.Model")
    def __init__(
        self,
        outputs: Value | Sequence[Value] | Mapping[str, Value],
        *,
        name: str = "model",
        inputs: Value | Sequence[Value] | None = None,
        params: Mapping[str, Any] | None = None,
        seed: int | None = None,
        meta: Mapping[str, str] | None = None,
    ):
        if not isinstance(outputs, Value) and not outputs:
            raise UsageError(f"gk.Model: model {name!r} has no output; pass a Value, or several by name")
        names = tuple(outputs) if isinstance(outputs, Mapping) else None
        inputs = [inputs] if isinstance(inputs, Value) else inputs
        values = (
            [outputs]
            if isinstance(outputs, Value)
            else list(outputs.values() if isinstance(outputs, Mapping) else outputs)
        )
        from graphkit.ir.model_inputs import check_input_names, ordered_inputs

        ordered = ordered_inputs(values, inputs)
        check_input_names(name, ordered)
        graph = Graph(ordered, values, name=name, output_names=names, meta=meta)
        self._adopt(graph, params or {}, config.SEED.get() if seed is None else seed)

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        meta: Mapping[str, str] | None = None,
        seed: int | None = None,
        declared: Declarations | None = None,
    ) -> Model:
        """Return a model of an existing graph.

        Args:
            graph: The graph.
            params: Arrays by parameter name. Other parameters are initialised from `seed`.
            name: Name of the model (default: that of the graph).
            meta: Metadata that is saved with the model, texts by key.
            seed: Seed of the initialisers of parameters that `params` lacks (default: GRAPHKIT_SEED).
            declared: Shapes that a file declares; runs are checked against them.
        """
        model = cls.__new__(cls)
        changes: dict[str, Any] = {}
        if name is not None and name != graph.name:
            changes["name"] = name
        if meta is not None:
            changes["meta"] = meta
        model._adopt(
            graph.replace(**changes) if changes else graph, params, config.SEED.get() if seed is None else seed
        )
        model._declared = declared
        return model

    def _adopt(self, graph: Graph, params: Mapping[str, Any], seed: int) -> None:
        self.graph = graph
        stored = {graph.name_of(v): v for v in graph.inputs if v.role in _STORED_ROLES}
        unknown = [k for k in params if k not in stored]
        if unknown:
            raise InvalidModel(f"{_titled(graph)} has no parameter {unknown[0]!r}{did_you_mean(unknown[0], stored)}")
        self.params = ParamStore({k: v.tensor for k, v in stored.items()})
        for key, value in stored.items():
            if key in params:
                self.params[key] = params[key]
            elif value in _owners:
                owner, held = _owners[value]
                self.params[key] = owner.entry(held)
            elif "init" in value.attrs:
                self._initialise(key, value, seed)
            else:
                raise InvalidModel(f"{_titled(graph)}: parameter {key!r} has neither a value nor an initialiser")
            _owners.setdefault(value, (self.params, key))
        self._executor: Executor | None = None
        self._declared: Declarations | None = None

    def _initialise(self, key: str, value: Value, seed: int) -> None:
        """Store the initial array of a parameter, which its initialiser computes. Raises OutOfMemory."""
        from graphkit.frontend.initializers import initialize

        try:
            limits.require_memory(value.tensor.nbytes)
            self.params.commit(key, initialize(value.tensor, value.attrs["init"], seed, key))
        except (MemoryError, OverflowError, ValueError) as error:
            raise OutOfMemory(
                f"{_titled(self.graph)}: no memory for parameter {key!r}, {value.tensor}, "
                f"{value.tensor.nbytes} bytes: {error}"
            ) from error

    def separate_roles(self) -> dict[str, str]:
        """Copy tensors that are used for several purposes, so that training can change one use without the other.

        This changes the model.

        Exporters store equal tensors only once. So one tensor may be the scale and the running variance of a new
        normalisation, the statistics of several layers, or a weight and a bound of Clip. Training must be able to
        update one of these and keep another. Weights that several layers share stay shared. Outputs of the model do not
        change.

        Returns:
            The name of each new tensor (of role "state", at the end of `params`) with the name of the tensor that it
            was copied from. If there are any, `graph` and `params` are new objects; programs compiled before keep the
            old ones.
        """
        from graphkit.passes.training.separate_roles import separate_roles

        graph, origins = separate_roles(self.graph)
        if graph is not self.graph:
            before = self.params
            self._adopt(graph, {**before.entries(), **{copy: before.entry(name) for copy, name in origins.items()}}, 0)
            for value in graph.inputs:
                if value.role in _STORED_ROLES and _owners[value][0] is before:
                    _owners[value] = (self.params, graph.name_of(value))
        return origins

    # --- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.graph.name

    @property
    def meta(self) -> Mapping[str, str]:
        """Metadata that is saved with the model: a dict from keys to texts."""
        return self.graph.meta

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class names in the order of class numbers, from the metadata "classes"; None if absent."""
        import json

        try:
            names = json.loads(self.meta.get(CLASSES, "null"))
        except ValueError:
            return None
        return tuple(map(str, names)) if isinstance(names, list) else None

    @property
    def data_inputs(self) -> tuple[Value, ...]:
        """The data inputs as Values."""
        return tuple(v for v in self.graph.inputs if v.role == "data")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the data inputs, in order."""
        return tuple(self.graph.name_of(v) for v in self.data_inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return self.graph.output_names

    @property
    def input_types(self) -> dict[str, Type]:
        """The types of the data inputs, by name."""
        return {self.graph.name_of(v): v.type for v in self.data_inputs}

    @property
    def output_types(self) -> dict[str, Type]:
        """The types of the outputs, by name."""
        return {n: v.type for n, v in zip(self.outputs, self.graph.outputs, strict=True)}

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that training updates: role "parameter", a float dtype, not marked frozen."""
        from graphkit.ir.counts import trainable

        return tuple(map(self.graph.name_of, trainable(self.graph)))

    @property
    def num_parameters(self) -> int:
        """The number of elements of all parameters, without running statistics."""
        from graphkit.ir.counts import elements, parameters

        return elements(parameters(self.graph))

    @property
    def internals(self) -> tuple[str, ...]:
        """The names of all values of the graph; each can be selected as an output."""
        return tuple(self.graph.name_of(v) for v in self.graph.values)

    def value(self, name: str) -> Value:
        """Return the output of this name, else the input, parameter or intermediate value.

        Raises UsageError if there is none; the message shows a similar name.
        """
        return self.graph.find(name)

    def select(self, *names: str) -> Model:
        """Return a model with the same parameters whose outputs are the values with these names (see `value`)."""
        if not names or any(not isinstance(n, str) for n in names):
            raise UsageError("select takes names of values, one by one: select('a', 'b')")
        outputs = {n: self.value(n) for n in names}
        from graphkit.ir.model_inputs import ordered_inputs

        inputs = ordered_inputs(outputs.values(), None)
        graph = Graph(inputs, outputs.values(), name=self.name, output_names=outputs, meta=self.meta)
        return Model.from_graph(graph, {})

    __getitem__ = select

    @typed("Model.infer_shapes")
    def infer_shapes(self, **shapes: Sequence[Any]) -> dict[str, Type]:
        """Return the types of all values and outputs, by name, for the given shapes of inputs.

        Inputs are keywords: `infer_shapes(x=[32, None])`. A None in a shape keeps the declared dimension.
        """
        bound = self._bound(shapes)
        types = {bound.name_of(v): v.type for v in bound.values}
        return types | {n: v.type for n, v in zip(bound.output_names, bound.outputs, strict=True)}

    def _bound(self, shapes: Mapping[str, Sequence[Any]]) -> Graph:
        """Return the graph with these shapes of inputs. A None in a shape keeps the declared dimension."""
        from graphkit.passes.core.bind import bind

        given = {}
        for name, shape in shapes.items():
            if name not in self.inputs:
                raise UsageError(f"{_titled(self.graph)} has no input {name!r}{did_you_mean(name, self.inputs)}")
            declared = self.graph.find(name, inputs_first=True).tensor
            kept = (None,) * len(shape) if declared.shape is None else declared.shape
            if len(kept) != len(shape):
                raise InputError(f"input {name!r} is {declared}, of rank {len(kept)}; the shape given is {list(shape)}")
            given[name] = TensorType(declared.dtype, [k if s is None else s for s, k in zip(shape, kept, strict=True)])
        return bind(self.graph, given)

    # --- using it --------------------------------------------------------------------------------

    def __call__(self, *operands: Any, **named: Any) -> Any:
        """Apply the network to values of a graph under construction; parameters are shared, not copied.

        If all operands are arrays, compute the outputs on the CPU instead (see `run`).

        Args:
            operands: The data inputs by position.
            named: The data inputs by name.

        Returns:
            The output (a graph value, or an array), or a tuple if there are several outputs.
        """
        table = operands_by_name(_titled(self.graph), self.inputs, operands, named)
        arrays = [name for name, operand in table.items() if not isinstance(operand, Value)]
        if len(arrays) == len(table) and arrays:
            computed = tuple(self.run(table).values())
            return computed[0] if len(computed) == 1 else computed
        return self.functional_call({}, *operands, **named)

    def functional_call(self, parameters: Mapping[str, Value], /, *operands: Any, **named: Any) -> Any:
        """Apply the network to values of a graph under construction, with other values for some parameters.

        Args:
            parameters: Graph values by name of the parameter or state that they replace, of the same type.
            operands: The data inputs by position.
            named: The data inputs by name.

        Returns:
            The output, a graph value, or a tuple if there are several outputs.
        """
        from graphkit.ir.subgraph import inline
        from graphkit.passes.core.draws import is_undetermined

        owner = _titled(self.graph)
        table = operands_by_name(owner, self.inputs, operands, named)
        if arrays := [name for name, operand in table.items() if not isinstance(operand, Value)]:
            raise UsageError(f"input {arrays[0]!r} is not a graph value, but other inputs are: use gk.constant(array)")
        for name, value in parameters.items():
            if name not in self.params:
                raise UsageError(f"{owner} has no parameter {name!r}{did_you_mean(name, self.params)}")
            if not isinstance(value, Value) or value.type != self.params.type_of(name):
                raise UsageError(f"{owner}: parameter {name!r} is {self.params.type_of(name)}, not {value}")
        names = {v: self.graph.name_of(v) for v in self.graph.inputs}
        arguments = [table[n] if v.role == "data" else parameters.get(n, v) for v, n in names.items()]
        outputs = inline(self.graph, arguments, is_undetermined)  # each call draws its own random numbers
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @typed("Model.compile")
    @without_gc
    def compile(
        self,
        device: AnyDevice = "cpu",
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        backends: str | Backend | Sequence[str | Backend] = (),
        **options: Any,
    ) -> Executor:
        """Compile the graph for a device; return an Executor.

        Args:
            device: One device, or one for each group of nodes (`{"first": "cuda:0", "second": "cuda:1"}`).
            shapes: Input shapes by name: the program is compiled for them in this call. By default, it is compiled at
                the first run.
            backends: Other engines, which compute the parts of the graph that they support: the name of a backend, such
                as "onnxruntime", a `gk.backend.Backend`, or several of them. The first one chooses its nodes first.
            options: threads, seed, optimize, inplace, share, deterministic, precision, check_finite, max_memory,
                max_iterations, timeout (see Executor).
        """
        from graphkit.executor.run.session import Executor

        if backends:
            from graphkit.backend.registry import resolve, warn_without_groups

            options["backends"] = resolve(backends)
        executor = Executor(self.graph, self.params, device=device, declared=self._declared, **options)
        if backends:
            warn_without_groups(executor, 4)
        if shapes is not None:
            executor.specialise(shapes)
        return executor

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Run on the CPU; return arrays by output name. The compiled program is kept for the next call.

        Args:
            feeds: Arrays by input name.
            outputs: Names of the outputs to compute (default: all).
        """
        if not isinstance(feeds, Mapping):
            named = ", ".join(f"{name!r}: array" for name in self.inputs)
            raise UsageError(f"give inputs by name: run({{{named}}})")
        if self._executor is None:
            self._executor = self.compile()
        return self._executor.run(feeds, outputs)

    # --- copies ----------------------------------------------------------------------------------

    def __copy__(self) -> Model:
        """Return a model of the same graph that shares the parameters."""
        copied = Model.__new__(type(self))
        copied.__dict__ |= self.__dict__
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """Return an independent model with equal names, metadata and parameters."""
        from graphkit.ir.pickling import pack

        packed = pack(self.graph, self.params)
        return _unpacked(*packed._replace(tensors={n: a.copy() for n, a in packed.tensors.items()}))

    def __reduce__(self) -> Any:
        from graphkit.ir.pickling import pack

        return _unpacked, tuple(pack(self.graph, self.params))

    # --- weights ---------------------------------------------------------------------------------

    def state_dict(self, *, names: Mapping[str, str] | None = None) -> dict[str, np.ndarray]:
        """Return copies of all parameters and states by name, as `load_state_dict` and PyTorch take them.

        A tensor with several names (see `gk.from_torch`) is returned under each of them.

        Args:
            names: Other names to use, by the name of the parameter or state, such as `gk.models.torch_names(net)`.
        """
        from graphkit.executor.run.state_dict import state_dict

        return state_dict(self.graph, self.params, names)

    @typed("Model.load_state_dict")
    def load_state_dict(
        self, state: Any, strict: bool = True, *, names: Mapping[str, str] | None = None
    ) -> LoadedNames:
        """Set parameters and states to arrays by name, such as a `state_dict()` of PyTorch. All are set, or none.

        Arrays are converted to the float type of the parameter. PyTorch's `num_batches_tracked` may be missing, and is
        left out if the network has no such state.

        Args:
            state: A dict of arrays or tensors by name, or a path: `.safetensors`, `.npz`, or a file of torch.save
                (`.pt`, `.pth`, `.bin`), which PyTorch reads with weights_only=True.
            strict: Whether a missing or unexpected name is an error. If False, such names are left out, but at least
                one must match.
            names: The names in `state`, by the name of the parameter or state here. Names that it lacks are equal.

        Returns:
            `missing_keys`, parameters and states that keep their values, and `unexpected_keys`, which were left out.
            Both contain names of `state`.

        Raises:
            InputError: Names are missing or unexpected, or shapes or types do not fit. The message lists all of them.
            UsageError: There is no such file, or its type is unknown.
            InvalidModel: The file is damaged.
            MissingDependency: The file needs PyTorch, which is not installed.
        """
        from graphkit.executor.run.state_dict import load_state_dict

        return load_state_dict(self.graph, self.params, state, strict, names)

    # --- files -----------------------------------------------------------------------------------

    @typed("Model.save")
    def save(self, path: str | Path, **options: Any) -> None:
        """Write the model to a `.json` file with the weights in a .safetensors file beside it, or to `.onnx` or `.gkp`.

        A `.gkp` file is a compiled program for the CPU, which libgraphkit.so runs from C without Python. It is for
        processors of the kind of this one. gk.load cannot read it.

        The file is not checked. `gk.verify(model, against=path).raise_if_failed()` runs an `.onnx` file in ONNX Runtime
        and compares every output with graphkit's; the command `graphkit export` does this by itself.

        Args:
            path: Name of the file. Its suffix selects the format.
            options: For `.onnx`: opset, as_inputs and with_updates, see `to_onnx`; and `external`: whether larger
                weights are in a data file beside it (default: only if the weights take more than 1 GiB). For `.gkp`:
                shapes (of inputs, by name; or a list of such shapes, for a program each); batch, numbers of rows, such
                as (1, 8, 32): a program for each of them, with which the C library runs batches of any size;
                any_size=True, a program for all sizes of symbolic axes; threads, deterministic and seed, see `compile`.

        Raises:
            UsageError: The suffix is not one of these, or `external` is False and the file is above 2 GiB.
            UnsupportedError: For `.gkp`: a node needs Python, or cannot be saved; or `batch` is given, or no shape of a
                symbolic batch, and rows may depend on each other. The message names the node.
        """
        from pathlib import Path

        path = Path(path)
        params = self.params.entries()  # weights that are still in a file are read one after the other
        match path.suffix:
            case ".json":
                from graphkit.executor.devices.loading import load_native
                from graphkit.ir import hashing, serialize

                hashing.load_extension = load_native
                serialize.save(path, self.graph, params, self.meta, **options)
            case ".onnx":
                from graphkit.executor.devices.loading import load_native
                from graphkit.ir import hashing
                from graphkit.onnx_io import exporter

                hashing.load_extension = load_native
                exporter.save(self.graph, params, path, name=self.name, meta=self.meta, **options)
            case ".gkp":
                from graphkit.executor.run.saved_program import save_program

                known = ("shapes", "batch", "any_size", "threads", "deterministic", "seed")
                if wrong := next((name for name in options if name not in known), None):
                    raise UsageError(f"{path}: a .gkp file has no option {wrong!r}; its options are {', '.join(known)}")
                batch, any_size = options.pop("batch", None), options.pop("any_size", False)
                shapes = {} if (given := options.pop("shapes", None)) is None else given
                every = [shapes] if isinstance(shapes, Mapping) else list(shapes)
                save_program({"graph": self.graph, "params": self.params, **options}, path, every, (), batch, any_size)
            case suffix:
                raise UsageError(f"cannot save {path}: unknown suffix {suffix!r}; use .json, .onnx or .gkp")

    @typed("Model.save_mxnet")
    def save_mxnet(
        self, prefix: str | Path, epoch: int = 0, *, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Write the model as a checkpoint of MXNet 1.9: `PREFIX-symbol.json`, and `PREFIX-0000.params` for epoch 0.

        Args:
            prefix: The beginning of the names of both files.
            epoch: The number in the name of the parameter file.
            shapes: Shapes of inputs by name. The symbol then holds for these only. Some operators need them.

        Raises:
            UnsupportedOperator: MXNet has no counterpart of an operator. The message lists all such operators.
            UnsupportedError: MXNet has no counterpart of an attribute, or needs a size that depends on the inputs.
        """
        from graphkit.mxnet_io import exporter
        from graphkit.passes.cleanup import CLEANUP
        from graphkit.passes.core.sweep import run_passes

        graph = self._bound(shapes) if shapes else self.graph
        exporter.save(run_passes(graph, CLEANUP), self.params.entries(), prefix, epoch)

    @typed("Model.to_onnx")
    def to_onnx(self, *, opset: int | None = None, **options: Any) -> ModelProto:
        """Return the model as an onnx.ModelProto of standard operators at `opset`.

        Args:
            opset: Version of the operators, 13 to 28 (default: 21, or the first later one that has all operators of the
                model).
            options: as_inputs=True lists the parameters as graph inputs, too, with their values as defaults. A list of
                names does so only for these parameters.
                with_updates=True adds an output `<state>_updated` for each state that a run of the graph updates.

        Raises:
            UnsupportedError: A node cannot be expressed with the operators of this opset.
        """
        from graphkit.onnx_io import exporter

        return exporter.export(self.graph, self.params, opset=opset, name=self.name, meta=self.meta, **options)

    # --- text ------------------------------------------------------------------------------------

    def summary(self) -> str:
        """Return a table of nodes: name, operator, output type, parameters, and the totals."""
        from graphkit.frontend.summary import summary

        return summary(self.graph)

    def to_dot(self) -> str:
        """Return the graph in the DOT language of Graphviz."""
        from graphkit.ir.printing import to_dot

        return to_dot(self.graph)

    def to_text(self) -> str:
        """Return the graph as text, one line per input and node. Building the same model again gives the same text."""
        from graphkit.ir.printing import to_text

        return to_text(self.graph)

    def show(self) -> None:
        """Print the graph as text, as `to_text` returns it."""
        sys.stdout.write(self.to_text() + "\n")

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.name)
        from graphkit.ir.origin import signature

        yield signature(self.graph)
        yield quantity(self.num_parameters, "parameter")
        yield human(self.params.nbytes)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the line of `repr`, and a drawing of the graph."""
        from graphkit.ir.drawing import to_html

        return to_html(self.graph, repr(self))


def _unpacked(*fields: Any) -> Model:
    from graphkit.ir.pickling import Packed, unpack

    return Model.from_graph(*unpack(Packed(*fields)))


def _titled(graph: Graph) -> str:
    """Name a model in errors; see `titled`."""
    from graphkit.ir.origin import titled

    return titled(graph, "model")
