"""The kernel table: for each device and operator, one rule that says which kernels there are.

The modules of a device register a rule for each operator. A factory of a rule gets a node and returns a kernel, or None
if it does not support this case. The executor then interprets the node, and the plan says so.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from graphkit.errors import UsageError
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext, LaunchedKernel
from graphkit.ir.graph import Node, Value
from graphkit.named_tuples import NamedTuple

# Makes a kernel of the host for a node of static types.
Factory: TypeAlias = Callable[[Node, KernelContext], Kernel | None]

# Shapes of operands or results, None for one that is absent.
Shapes: TypeAlias = Sequence[tuple[int, ...] | None]

# Makes a kernel for given shapes of the operands and of the results. On the CPU, it may have these attributes:
# - `native`: the `graphkit._native.KernelFactory` that makes the same kernels without Python, or None.
# - `reads_elements`: positions of operands whose elements, which depend only on sizes, it gets instead of shapes.
SizedFactory: TypeAlias = Callable[[Shapes, Shapes], Kernel | None]

# Does the work that does not depend on sizes (types, attributes, which operands are present), once for all sizes.
# Returns None if no size has a kernel, or if that is known only for a node of static types.
Preparation: TypeAlias = Callable[[Node, KernelContext], SizedFactory | None]

# Makes a kernel whose results have data-dependent shapes. The node's shapes need not be known.
DataDependentFactory: TypeAlias = Callable[[Node, KernelContext], DataDependentKernel | None]

# Makes a function from a node's operands to its only result: a new array, of the inferred dtype. The function calls
# `limits.require_memory` if the result may be much larger than the operands. The node's shapes need not be known.
StringFunctionFactory: TypeAlias = Callable[[Node], Callable[..., Any] | None]

# Makes the kernel of a device with its own memory, for a node of static types.
LaunchedFactory: TypeAlias = Callable[[Node, KernelContext], LaunchedKernel | None]


if TYPE_CHECKING:

    class Named(Protocol):
        """An operator, or its class."""

        @property
        def domain(self) -> str: ...
        @property
        def name(self) -> str: ...


class KernelRule(NamedTuple):
    """How one device computes one operator. A field is None if the device has no such kernel.

    Args:
        make: Makes kernels of the host, for known sizes.
        prepare: Makes the same kernels in two steps, for operators whose kernels share work between sizes.
        launched: Makes kernels of a device with its own memory, for known sizes.
        data_dependent: Makes kernels whose results have data-dependent shapes.
        string_function: Makes functions for nodes that read or return tensors of strings.
        covers: Whether a node of a composite operator has a kernel, and so is not expanded. The node's shapes need not
            be known.
        fusable: Whether kernels of fused elementwise regions may contain the operator.
    """

    make: Factory | None = None
    prepare: Preparation | None = None
    launched: LaunchedFactory | None = None
    data_dependent: DataDependentFactory | None = None
    string_function: StringFunctionFactory | None = None
    covers: Callable[[Node], bool] | None = None
    fusable: bool = False

    @property
    def has_kernels(self) -> bool:
        """Whether there are kernels for tensors of numbers, at least for some types."""
        return any(made is not None for made in (self.make, self.prepare, self.launched, self.data_dependent))

    def kernel(self, node: Node, context: KernelContext) -> Kernel | None:
        """Return the host's kernel for a node of static types, or None if there is none for this case."""
        if self.prepare is None:
            return None if self.make is None else self.make(node, context)
        sized = self.prepare(node, context)
        return None if sized is None else sized(_static_shapes(node.inputs), _static_shapes(node.outputs))


def _static_shapes(values: Sequence[Value | None]) -> Shapes:
    return [None if v is None else v.tensor.static_shape for v in values]


def _given(rule: KernelRule) -> dict[str, Any]:
    """The fields that differ from their default."""
    return {name: value for name, value in rule._asdict().items() if value}


class _Source(NamedTuple):
    """The module that registered a field, and the namespace of that import. Each import creates a new namespace."""

    module: str
    namespace: dict[str, Any] | None

    @staticmethod
    def of(module: str) -> _Source:
        loaded = sys.modules.get(module)
        return _Source(module, None if loaded is None else vars(loaded))

    def replaces(self, earlier: _Source) -> bool:
        """Whether `earlier` is an earlier import of the same module, which was interrupted."""
        return self.module == earlier.module and self.namespace is not earlier.namespace


# Device, domain and name.
_Key: TypeAlias = tuple[str, str, str]
_Modules: TypeAlias = tuple[str, Sequence[str]]

_NO_KERNELS = KernelRule()
# For a field, all fields that make kernels for the same nodes.
_SAME_KERNELS = dict.fromkeys(("make", "prepare"), ("make", "prepare"))
# Protects changes of `_rules` and `_sources`. Never held during an import, which may wait for other threads.
_lock = threading.Lock()
_rules: dict[_Key, KernelRule] = {}
# For each rule, the module that registered each field.
_sources: dict[_Key, dict[str, _Source]] = {}
# The modules that will register a rule when they are imported: how their names begin, and the rest of each.
_unimported: dict[_Key, _Modules] = {}
# The same as `_unimported` for modules of string functions, which few programs need.
_unimported_strings: dict[_Key, _Modules] = {}


def register(device: str, domain: str, name: str, rule: KernelRule, module: str = "") -> None:
    """Add the rule of operator `domain`.`name` on `device`. See `register_all`."""
    register_all(device, [(domain, name)], rule, module)


def register_all(device: str, operators: Iterable[tuple[str, str]], rule: KernelRule, module: str = "") -> None:
    """Add one rule for several operators on `device`.

    Two modules may register different fields, for example the kernels for numbers and the functions for strings. After
    an interrupted import, a module is imported again and replaces the fields that it had registered.

    Args:
        device: The device.
        operators: Domain and name of each operator.
        rule: The rule.
        module: The module that registers it.

    Raises:
        UsageError: A field was already registered, by another module or twice by this one.
    """
    given, source = _given(rule), _Source.of(module)
    keys = [(device, domain, name) for domain, name in operators]
    with _lock:
        if _rules.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            _rules.update(dict.fromkeys(keys, rule))
            # They share a table, because `_register` does not change the tables of earlier rules.
            _sources.update(dict.fromkeys(keys, dict.fromkeys(given, source)))
            return
        for key in keys:
            _register(key, rule, given, source)


def _register(key: _Key, rule: KernelRule, given: Mapping[str, Any], source: _Source) -> None:
    """Add a rule, whose fields `given` come from `source`. The caller holds `_lock`."""
    before = _rules.get(key)
    if before is None:
        _rules[key], _sources[key] = rule, dict.fromkeys(given, source)
        return
    known = _sources.get(key, {})
    taken = {field for name in given for field in _SAME_KERNELS.get(name, (name,)) if field in known}
    if not all(source.replaces(known[field]) for field in taken):
        device, domain, name = key
        raise UsageError(f"device {device!r} has two kernels for {domain or 'ai.onnx'}.{name}")
    _rules[key] = before._replace(**given)
    _sources[key] = {**known, **dict.fromkeys(given, source)}


def rule_of(device: str, operator: Named, *, strings: bool = False) -> KernelRule:
    """Return the rule of an operator on a device; one without kernels if none is registered.

    strings: Whether `string_function` is needed, too.
    """
    key = device, operator.domain, operator.name
    _import(_unimported, key)
    if strings:
        _import(_unimported_strings, key)
    return _rules.get(key, _NO_KERNELS)


def _import(unimported: dict[_Key, _Modules], key: _Key) -> None:
    """Import the modules that register the rule, if that has not been done. Other threads may do the same."""
    modules = unimported.get(key)
    if modules is None:
        return
    package, names = modules
    for name in names:
        importlib.import_module(package + name)
    # Remove the entry last: a thread that finds no entry expects the rule to be registered.
    unimported.pop(key, None)


def register_modules(
    device: str,
    modules: Mapping[tuple[str, str], Sequence[str]],
    strings: Mapping[tuple[str, str], Sequence[str]],
    package: str = "",
) -> None:
    """Add modules that `rule_of` imports when it is first called for one of their operators; they register the rules.

    Args:
        device: The device.
        modules: Names of modules by domain and name of the operator.
        strings: The same for string functions.
        package: The package of the modules, if their names do not contain it.
    """
    prefix = package and f"{package}."
    _unimported.update(((device, *operator), (prefix, found)) for operator, found in modules.items())
    _unimported_strings.update(((device, *operator), (prefix, found)) for operator, found in strings.items())


def unregister(device: str) -> None:
    """Remove all rules of a device, also those of modules that are not imported yet."""
    with _lock:
        tables: tuple[dict[_Key, Any], ...] = (_rules, _sources, _unimported, _unimported_strings)
        for table in tables:
            for key in [key for key in table if key[0] == device]:
                del table[key]


def sources(device: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the module that registered each field of a device's rules, by domain and name of the operator."""
    with _lock:
        return {
            (domain, name): {field: source.module for field, source in found.items()}
            for (kind, domain, name), found in _sources.items()
            if kind == device
        }


def make_kernel(device: str, node: Node, context: KernelContext) -> Kernel | None:
    """Return the host's kernel for a node of static types, or None if there is none for this case."""
    return rule_of(device, node.op).kernel(node, context)


def make_launched(device: str, node: Node, context: KernelContext) -> LaunchedKernel | None:
    """Return the device's kernel for a node of static types, or None if there is none for this case."""
    launched = rule_of(device, node.op).launched
    return None if launched is None else launched(node, context)


def runs_whole(device: str, node: Node) -> bool:
    """Return whether the device has a kernel for a node of a composite operator, which then is not expanded."""
    covers = rule_of(device, node.op).covers
    return covers is not None and covers(node)
