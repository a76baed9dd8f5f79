"""Recurrent layers, and those that also save values for their gradients.

One product multiplies the inputs of all times by w. A step is a product of the state with r, for all directions in one
call, and a kernel for everything else. In a GRU without linear_before_reset, the last gate has a separate product, so a
step has two products and two kernels. All steps use the same working memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.executor.devices.cuda.launches import (
    Argument,
    CardKernel,
    Input,
    Launch,
    Matrix,
    Output,
    Product,
    Scratch,
    launched,
)
from graphkit.executor.devices.cuda.products import workspace_for
from graphkit.executor.devices.cuda.rnn.cells import Cell, computed, forward_cell
from graphkit.executor.devices.cuda.rnn.steps import Multiplied, Operands, Recurrent, WorkingMemory, in_use, positions
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.rnn.backward import OfLayer
from graphkit.ops.rnn.recurrence import Recurrence


class _Projected(NamedTuple):
    """The product of the inputs: [D, T, N, parts * H], or [D, N, T, parts * H] if the layer has batches first."""

    place: Argument
    parts: int


@dataclass(frozen=True)
class _Forward:
    """The forward kernel of a layer.

    inputs, outputs: positions of the operands that are present, and of the results that are used, by name.
    """

    found: Recurrent
    features: int
    inputs: dict[str, int]
    outputs: dict[str, int]
    cells: tuple[Cell, ...]

    def kernel(self) -> CardKernel:
        found = self.found
        if found.elements == 0:
            return CardKernel(())
        size = found.steps * found.elements * found.layer.gates
        projects = found.steps > 0 and self.features > 0
        memory = WorkingMemory(max(found.workspace, workspace_for(size, self.features) if projects else 0))
        state = {name: memory.array(found.elements, found.held) for name in self._states}
        # The factor of products: h in the type of the layer. The state itself keeps the type in which it is computed.
        factor = state["h"] if found.kind is found.held else memory.array(found.elements, found.kind)
        projected = self._projected(memory, size) if projects else None
        launches: list[Launch | Product] = [self._begin(state, factor)]
        if projected is not None:
            launches.append(self._projection(projected))
        products, copies = self._products(factor, memory)
        launches += copies
        kernels = [self._stage(number, products, projected, state) for number in range(len(products))]
        for step in range(found.steps):
            for one, kernel in zip(products, kernels, strict=True):
                launches += [one.product, found.at_step(kernel, step)]
        if any(f"y_{name}" in self.outputs for name in self._states):
            launches.append(self._end(state))
        return CardKernel(tuple(launches), memory.bytes)

    @property
    def _states(self) -> tuple[str, ...]:
        return ("h", "c")[: self.found.layer.states]

    def _keep(self, operands: Operands, name: str, place: Scratch, factor: Scratch, value: str) -> list[str]:
        """Return lines that write the element of a state; for h also the factor of products, if it is rounded."""
        found = self.found
        lines = [operands.write(f"kept_{name}", found.held, place, "at", value)]
        if name == "h" and factor != place:
            lines.append(operands.write("factor", found.kind, factor, "at", value))
        return lines

    # --- before the first step, and after the last ------------------------------------------------------------------

    def _begin(self, state: dict[str, Scratch], factor: Scratch) -> Launch:
        """Return the launch that sets the states to the initial ones."""
        found, operands, lines = self.found, Operands(), []
        for name, place in state.items():
            given = self.inputs.get(f"initial_{name}")
            initial = "(A)0"
            if given is not None:
                initial = operands.read(f"initial_{name}", found.kind, Input(given), found.of_state)
            lines += [f"const A begun_{name} = {initial};"]
            lines += self._keep(operands, name, place, factor, f"begun_{name}")
        return found.launch("begin", "step", operands, lines)

    def _end(self, state: dict[str, Scratch]) -> Launch:
        """Return the launch that copies the last states to the results."""
        found, operands, lines = self.found, Operands(), []
        for name, place in state.items():
            if f"y_{name}" in self.outputs:
                last = operands.read(f"state_{name}", found.held, place, "at")
                result = Output(self.outputs[f"y_{name}"])
                lines.append(operands.write(f"y_{name}", found.kind, result, found.of_state, last))
        return found.launch("end", "step", operands, lines)

    def _projected(self, memory: WorkingMemory, size: int) -> _Projected:
        """Return the memory of the product of the inputs: that of the saved gates, if the layout is the same."""
        found, layer = self.found, self.found.layer
        if "gates" in self.outputs and not layer.layout and found.kind is found.held:
            return _Projected(Output(self.outputs["gates"]), layer.saved_gates)
        return _Projected(memory.array(size, found.held), layer.gates)

    def _projection(self, projected: _Projected) -> Product:
        found = self.found
        rows, columns = found.steps * found.batch, found.layer.gates * found.hidden
        across = projected.parts * found.hidden
        return Product(
            found.kind,
            a=Matrix(Input(self.inputs["w"]), self.features, columns, self.features, columns * self.features),
            b=Matrix(Input(self.inputs["x"]), self.features, rows, self.features),
            d=Matrix(projected.place, columns, rows, across, rows * across),
            transposed=(True, False),
            batch=found.directions,
            tf32=found.tf32,
            workspace=workspace_for(found.directions * rows * columns, self.features),
            sums=True,
        )

    # --- a step -----------------------------------------------------------------------------------------------------

    def _products(self, h: Scratch, memory: WorkingMemory) -> tuple[list[Multiplied], list[Launch]]:
        """Return the products of a step, and launches that must run before the first step."""
        found = self.found
        made, copies = [], []
        for one in self.cells[0].products:
            of_r, before = found.part_of_r(Input(self.inputs["r"]), one.rows, memory)
            left = memory.array(found.elements, found.kind) if one.left else h
            result = memory.array(found.elements * one.rows.parts, found.held)
            made.append(Multiplied(left, result, found.product(of_r, left, result, back=False)))
            copies += before
        return made, copies

    def _stage(
        self, number: int, products: Sequence[Multiplied], projected: _Projected | None, state: dict[str, Scratch]
    ) -> Launch:
        """Return the kernel after product `number` of a step.

        It computes the left factor of the next product; after the last product, the results of the step.
        """
        found, operands, cell = self.found, Operands(), self.cells[0]
        last = number + 1 == len(products)
        saved = sorted(name for name in self.outputs if name.endswith("_before")) if last else []
        wanted = [*self._states] if last else [*cell.products[number + 1].left]
        if last and "gates" in self.outputs:
            wanted += [f"gates{k}" for k in range(found.layer.saved_gates)]

        def load(name: str) -> str:
            return self._load(operands, name, products, projected, state)

        also = [name.removesuffix("_before") for name in saved]
        lines = [
            f"const {found.places.index} time = {found.time('step')}, past = (d * steps + time) * isize1 + n;",
            *computed(self.cells, wanted, load, also),
        ]
        if last:
            lines += self._written(operands, state, products[0].left, saved)
        else:
            left = products[number + 1].left
            lines += [operands.write("left", found.kind, left, "at", f"to_{name}") for name in wanted]
        return found.launch(f"step{number}", "step", operands, lines)

    def _load(
        self, operands: Operands, name: str, products: Sequence[Multiplied], projected: _Projected | None,
        state: dict[str, Scratch],
    ) -> str:  # fmt: skip
        """Return the expression of an operand of the cell."""
        found, gates = self.found, self.found.layer.gates
        if name in state:
            return operands.read(f"state_{name}", found.held, state[name], "at")
        kind, part = name[0], int(name[1:])
        if kind == "x":
            terms = []
            if projected is not None:
                row = "(d * isize1 + n) * steps + time" if found.layer.layout else "past"
                place = found.of_part(part, projected.parts, f"({row})")
                terms.append(operands.read("projected", found.held, projected.place, place))
            if "b" in self.inputs:
                terms.append(
                    operands.read("b", found.kind, Input(self.inputs["b"]), found.of_part(part, 2 * gates, "d"))
                )
            return " + ".join(terms) or "(A)0"
        if kind == "b":
            place = found.of_part(gates + part, 2 * gates, "d")
            return operands.read("b", found.kind, Input(self.inputs["b"]), place)
        if kind == "p":
            return operands.read("p", found.kind, Input(self.inputs["p"]), found.of_part(part, 3, "d"))
        number = next(i for i, one in enumerate(self.cells[0].products) if name in one.results)
        rows = self.cells[0].products[number].rows
        place = found.of_part(part - rows.first, rows.parts, "row")
        return operands.read(f"product{number}", found.held, products[number].result, place)

    def _written(
        self, operands: Operands, state: dict[str, Scratch], factor: Scratch, saved: Sequence[str]
    ) -> list[str]:
        """Return lines that write the results of a step. After the end of a sequence, y is 0, and the state is kept."""
        found = self.found
        is_within = found.is_within(operands, self.inputs.get("sequence_lens"), "time")
        lines = [f"const bool is_within = {is_within};"]
        for name in saved:
            place, result = found.of_part(0, 1, "past"), Output(self.outputs[name])
            lines.append(operands.write(name, found.kind, result, place, name.removesuffix("_before")))
        if "gates" in self.outputs:
            parts, result = found.layer.saved_gates, Output(self.outputs["gates"])
            for k in range(parts):
                place = found.of_part(k, parts, "past")
                lines.append(operands.write("gates", found.kind, result, place, f"to_gates{k}"))
        if "y" in self.outputs:
            result = Output(self.outputs["y"])
            lines.append(operands.write("y", found.kind, result, found.of_result, "is_within ? to_h : (A)0"))
        new = [
            line for name, place in state.items() for line in self._keep(operands, name, place, factor, f"to_{name}")
        ]
        return [*lines, "if (is_within) {", *("    " + line for line in new), "}"]


def _forward(node: Node, context: KernelContext, layer: Recurrence, names: Sequence[str]) -> CardKernel | None:
    inputs, x, r = positions(node), shape(node.inputs[0]), shape(node.inputs[2])
    steps, batch = x[1::-1] if layer.layout else x[:2]
    kind = node.operands[0].dtype
    found = Recurrent(layer, kind, steps, batch, r[2], context.tf32 and kind is DType.FLOAT32)
    cells = tuple(
        forward_cell(layer, d, found.held, biased="b" in inputs, peepholes="p" in inputs)
        for d in range(layer.directions)
    )
    return _Forward(found, x[2], inputs, in_use(names, context.used_outputs), cells).kernel()


def _layer(node: Node, context: KernelContext) -> CardKernel | None:
    layer = operator(node, Recurrence)
    return _forward(node, context, layer, layer.outputs)


def _recurrence(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, OfLayer)
    return _forward(node, context, op.forward, op.outputs)


for _name in ("RNN", "GRU", "LSTM"):
    launched(_name)(_layer)
    launched(f"{_name}Recurrence", DOMAIN, covers=lambda node: True)(_recurrence)
