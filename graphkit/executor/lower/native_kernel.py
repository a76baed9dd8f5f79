"""Lower nodes to kernels of the device, if all their sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any

from graphkit.executor.devices.kernel import MOST_READ_BYTES, NativeKernel, VersionedArray, is_native
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.lower.lowering import ABSENT, Emission, Location, Lowering, Site
from graphkit.executor.memory.placement import Placement
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import Op
from graphkit.ops._op import number_of
from graphkit.ops.pointwise import divides_integers
from graphkit.passes.core.sweep import read_positions


def unread_operands(kernel: NativeKernel, node: Node) -> Set[int]:
    """Return the positions of operands whose elements are not read. Their memory may contain another value."""
    if not isinstance(node.op, Op) or not node.op.shape_only:
        return frozenset()
    return set(kernel.optional_inputs).difference(read_positions(node))


class PreparedKernel(Lowering):
    """A kernel of the native extension, prepared for exactly these shapes."""

    def __init__(self, kernel: NativeKernel, node: Node):
        self.kernel = kernel
        self.unread = unread_operands(kernel, node)
        self.scratch_bytes = int(kernel.scratch_bytes)
        self.inplace = kernel.inplace
        self.packing = kernel

    def emit(self, step: Emission) -> None:
        kernel = self.kernel
        step.builder.kernel(
            step.name,
            kernel,
            _padded(step.inputs, kernel.input_count),
            _padded(step.outputs, kernel.output_count),
            step.scratch,
        )


class SharedKernels:
    """Lowerings to kernels of the device. Equal nodes of a graph share one, because kernels have no state.

    Args:
        placement: The storages of the graph.
        known: The arrays of parameters and constants, by storage.
    """

    def __init__(self, placement: Placement, known: Mapping[Value, VersionedArray]):
        self._placement, self._known = placement, known
        self._lowerings: dict[Hashable, PreparedKernel] = {}

    def lowering(self, node: Node, choose: Callable[[Node], Lowering]) -> Lowering:
        """Return the lowering of an equal earlier node. If there is none, return `choose(node)`."""
        key = self._key(node)
        earlier = self._lowerings.get(key)
        if earlier is not None:
            return earlier
        found = choose(node)
        if isinstance(found, PreparedKernel):
            self._lowerings[key] = found
        return found

    def _key(self, node: Node) -> Hashable:
        """Return a key that is equal for two nodes if the same kernel fits both. All tensors must have known sizes.

        The key contains the ids of constants and of small parameters, so it is valid while these arrays exist. It also
        says which operands are the same value. Of large parameters, it contains only the types.
        """
        root, known = self._placement.root, self._known
        places: dict[Value, int] = {}
        operator: Any = node.op
        parts: list[Hashable] = [number_of(operator) if isinstance(operator, Op) else operator]
        for position, value in enumerate(node.inputs):
            if value is None or not isinstance(value.type, TensorType):
                parts.append(None)
                continue
            storage = root.get(value)
            array = None if storage is None else known.get(storage)
            same = places.setdefault(value, position)
            parts += (value.type.number, same, None if array is None else _identity(value, value.type, array))
        for value in node.outputs:
            kind = value.type
            parts += (kind.number if isinstance(kind, TensorType) else None, value in self._placement.used)
        # The error of an integer division by zero names the node.
        if divides_integers(node):
            parts.append(node.name or node.describe())
        return tuple(parts)


def _identity(value: Value, kind: TensorType, array: VersionedArray) -> int:
    """Return the id of an array whose elements a kernel may depend on; 0 if its factory reads no elements."""
    # Factories read the elements of Constant nodes of any size, but of other arrays only up to MOST_READ_BYTES.
    return 0 if value.node is None and kind.is_static and kind.nbytes > MOST_READ_BYTES else id(array)


def native_kernel(site: Site) -> Lowering | None:
    """Return the lowering of a node to a kernel of the device; None if a size is unknown, or if there is no kernel."""
    if not site.static:
        return None
    kernel = make_kernel(site.settings.device, site.node, site.context)
    if kernel is None:
        return None
    if is_native(kernel):
        return PreparedKernel(kernel, site.node)
    from graphkit.executor.lower.python_step import PythonKernel

    return PythonKernel("native", site.node, kernel)


def _padded(locations: Sequence[Location], count: int) -> list[Location]:
    return [*locations, *[ABSENT] * (count - len(locations))]
