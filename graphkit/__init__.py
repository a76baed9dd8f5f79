"""graphkit: define or import a network, differentiate it, run and train it, and prove what it exports.

Everything public is an attribute of this package and loads when it is first used; __init__.pyi has their types.
"""

from __future__ import annotations

import importlib
from typing import Any

from graphkit import module_finder

module_finder.install()

# Type checkers and editors read the names in __init__.pyi, which graphkit.checks.stub makes.
# Public name -> module that defines it. Operators (gk.relu, gk.mat_mul, ...) come from the registry.
_PUBLIC = {
    "Model": "graphkit.model",
    "load": "graphkit.loading",
    "from_torch": "graphkit.interop.pytorch",
    "from_sklearn": "graphkit.interop.exporters",
    "from_keras": "graphkit.interop.exporters",
    "grad": "graphkit.transforms.gradients",
    "vjp": "graphkit.transforms.derivatives",
    "jvp": "graphkit.transforms.derivatives",
    "jacobian": "graphkit.transforms.derivatives",
    "hessian": "graphkit.transforms.derivatives",
    "vmap": "graphkit.transforms.vmap",
    "block_loops": "graphkit.transforms.blocked_loops",
    "extract": "graphkit.transforms.extract",
    "simplify": "graphkit.transforms.simplify",
    "prune": "graphkit.transforms.prune",
    "input": "graphkit.frontend.layers",
    "parameter": "graphkit.frontend.layers",
    "constant": "graphkit.ops",
    "op": "graphkit.ops",
    "Op": "graphkit.ops",
    "Onnx": "graphkit.ops",
    "Sample": "graphkit.ops",
    "Rand": "graphkit.ops",
    "SequenceSample": "graphkit.ops",
    "OptionalSample": "graphkit.ops",
    "Value": "graphkit.ir.graph",
    "Node": "graphkit.ir.graph",
    "Graph": "graphkit.ir.graph",
    "TensorType": "graphkit.ir.types",
    "SequenceType": "graphkit.ir.types",
    "OptionalType": "graphkit.ir.types",
    "DType": "graphkit.ir.types",
    "name_scope": "graphkit.frontend.scopes",
    "attr_scope": "graphkit.frontend.scopes",
    "cond": "graphkit.frontend.control",
    "while_loop": "graphkit.frontend.control",
    "scan": "graphkit.frontend.control",
    "map": "graphkit.frontend.control",
    "sequence_map": "graphkit.frontend.control",
    "foreach": "graphkit.frontend.control",
    "fold": "graphkit.frontend.control",
    "TensorArray": "graphkit.frontend.tensor_array",
    "gradient": "graphkit.autodiff.reverse_mode",
    "profile": "graphkit.executor.run.profile",
    "verify": "graphkit.checks.verify",
    "bisect": "graphkit.checks.bisect",
    "diff": "graphkit.checks.diff",
    "check_gradient": "graphkit.checks.gradcheck",
    "find_nonfinite": "graphkit.checks.nonfinite",
    "reduce_model": "graphkit.checks.reduction",
    "graph_page": "graphkit.report.graph_page",
    "predict": "graphkit.inference.predict",
    "generate": "graphkit.inference.generation.generate",
    "serve": "graphkit.serving.serve",
    "Trainer": "graphkit.train.trainer",
    "zero_masks": "graphkit.train.masks",
    "StepBuilder": "graphkit.train.step_builder",
    "TrainingStep": "graphkit.train.step_builder",
    "CustomTrainer": "graphkit.train.custom_trainer",
    "LBFGS": "graphkit.train.lbfgs",
    "Callback": "graphkit.train.callbacks",
    "TensorBoard": "graphkit.report.tensorboard",
    "CSVLogger": "graphkit.report.loggers",
    "RunLogger": "graphkit.report.loggers",
    "PythonLogger": "graphkit.report.loggers",
    "find_lr": "graphkit.train.find_lr",
    "lora": "graphkit.train.adapters.lora",
    "merge_lora": "graphkit.train.adapters.merge",
    "save_adapter": "graphkit.train.adapters.files",
    "load_adapter": "graphkit.train.adapters.files",
    "adapter_parameters": "graphkit.train.adapters.files",
    "set_adapter": "graphkit.train.adapters.files",
    "AdapterSet": "graphkit.train.adapters.adapter_set",
    "evaluate": "graphkit.inference.evaluate",
    "quantize": "graphkit.quantisation.quantize",
    "reduce_precision": "graphkit.quantisation.reduced_precision",
    "quantization_aware": "graphkit.quantisation.aware",
    "GraphkitError": "graphkit.errors",
    "GraphkitWarning": "graphkit.errors",
}
_MODULES = {
    "nd": "graphkit.nd",
    "autograd": "graphkit.nd.autograd",
    "nn": "graphkit.frontend.layers",
    "init": "graphkit.frontend.initializers",
    "linalg": "graphkit.frontend.linalg",
    "callbacks": "graphkit.train.callbacks",
    "optim": "graphkit.train.optim",
    "losses": "graphkit.train.losses",
    "metrics": "graphkit.train.metrics",
    "settings": "graphkit.train.settings",
    "kvstore": "graphkit.dist.kvstore",
    "models": "graphkit.models",
    "data": "graphkit.data",
    "backend": "graphkit.backend",
    "mxnet_io": "graphkit.mxnet_io",
    "errors": "graphkit.errors",
    "config": "graphkit.config",
}
# Modules that this package itself imports by `from graphkit import ...`, which asks for the attribute first.
_INTERNAL = frozenset({"cores", "debug"})
# Earlier names that still work, and the present names of the same objects.
_RENAMED = {"Items": "SequenceSample", "Perhaps": "OptionalSample"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from graphkit.distribution import version

        return version()
    if name in _INTERNAL:
        raise AttributeError(f"module 'graphkit' has no attribute {name!r}")
    if name in _MODULES:
        found: Any = _import(_MODULES[name])
    elif name in _RENAMED:
        found = __getattr__(_RENAMED[name])
    elif name in _PUBLIC:
        found = getattr(_import(_PUBLIC[name]), name)
    else:
        return _operator(name)
    globals()[name] = found
    return found


def _import(module: str) -> Any:
    """Import a module. The cyclic garbage collector pauses, because an import frees almost nothing."""
    from graphkit.collector import without_gc

    return without_gc(importlib.import_module)(module)


def _operator(name: str) -> Any:
    # Not cached in this module: user code may register and unregister operators.
    if not name.startswith("_"):
        from importlib.util import find_spec

        from graphkit.ops import registry

        found = registry.function(name)
        if found is not None:
            return found
        # `from graphkit import debug` asks for the attribute first, and imports the module after AttributeError: no
        # hint then.
        hint = _hint(name) if find_spec(f"graphkit.{name}") is None else ""
    else:
        hint = ""
    raise AttributeError(f"module 'graphkit' has no attribute {name!r}{hint}")


def _hint(name: str) -> str:
    """Return what a message suggests for an unknown name: the same name in a submodule, or the most similar name."""
    from graphkit.errors import closest, did_you_mean
    from graphkit.ops import registry
    from graphkit.ops._calls import elsewhere, other_names

    if right := elsewhere(name):
        return f"; write {right}"
    inside = [module for module in _MODULES if name in _names_of(module)]
    if inside:
        return f"; write {' or '.join(f'gk.{module}.{name}' for module in inside)}"
    own = [*_PUBLIC, *_MODULES, *(n for n in registry.function_names() if not n.endswith("_grad"))]
    others = [n for n in other_names() if len(n) > 3 and n not in own]  # short names resemble too many others
    layers = [n for n in _names_of("nn") if n not in own]
    near = closest(name, [*own, *layers, *others], alike=0.7)
    if near in layers:
        return f"; did you mean gk.nn.{near}?"
    if near in others:
        return f"; write {elsewhere(near)}"
    return did_you_mean(name, own, alike=0.7)


def _names_of(module: str) -> list[str]:
    """Return the names that a module of _MODULES defines, or lists in `__all__`."""
    found = importlib.import_module(_MODULES[module])
    members = vars(found).items()
    return [
        n for n, member in members if n in getattr(found, "__all__", ())
        or (not n.startswith("_") and getattr(member, "__module__", None) == found.__name__)
    ]  # fmt: skip


def __dir__() -> list[str]:
    from graphkit.ops import registry

    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *_PUBLIC, *_MODULES, *registry.function_names(), "__version__"})
