"""The recurrence of a layer backward in time: from gradients by its results to those by its gates.

A step is a kernel, which leaves the gates' gradients side by side, and their product with r, of both directions in one
call; a GRU without linear_before_reset has two of either. The product is added by the next step's kernel, as only that
of a sequence that goes on counts: beyond its length the gradient by the state is handed on as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.executor.devices.cuda.launches import CardKernel, Input, Launch, Output, Product, Scratch, launched
from graphkit.executor.devices.cuda.rnn.cells import Cell, computed, gradient_cell
from graphkit.executor.devices.cuda.rnn.steps import Multiplied, Operands, Recurrent, WorkingMemory, in_use, positions
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.rnn.backward import RecurrenceGrad


@dataclass(frozen=True)
class _Backward:
    """inputs, outputs: positions of operands that are there, and of results that somebody reads, by name.

    The gradient by h before a step, in working memory, lacks the step's last product, which is added where it is read.
    """

    found: Recurrent
    inputs: dict[str, int]
    outputs: dict[str, int]
    cells: tuple[Cell, ...]

    def kernel(self) -> CardKernel:
        found = self.found
        if found.elements == 0:
            return CardKernel(())
        memory = WorkingMemory(found.workspace)
        state = {name: memory.array(found.elements, found.held) for name in self._states}
        products, launches = self._products(memory)
        launches.append(self._begin(state))
        kernels = [self._stage(number, products, state) for number in range(len(products))]
        for step in reversed(range(found.steps)):
            for one, kernel in zip(products, kernels, strict=True):
                launches += [found.at_step(kernel, step + 1), one.product]
        if any(f"dinitial_{name[1]}" in self.outputs for name in self._states):
            launches.append(self._end(state, products[-1]))
        elif found.steps > 0:
            launches.pop()  # nobody reads the product of the first step
        return CardKernel(tuple(launches), memory.bytes)

    @property
    def _states(self) -> tuple[str, ...]:
        return ("dh", "dc")[: self.found.layer.states]

    # --- before the first step, and behind the last -----------------------------------------------------------------

    def _begin(self, state: dict[str, Scratch]) -> Launch:
        """The gradients by the last states are those that came."""
        found, operands, lines = self.found, Operands(), []
        for name, place in state.items():
            given, end = self.inputs.get(f"dy_{name[1]}"), "(A)0"
            if given is not None:
                end = operands.read(f"dy_{name[1]}", found.kind, Input(given), found.of_state)
            lines.append(operands.write(f"held_{name}", found.held, place, "at", end))
        return found.launch("grad_begin", "step", operands, lines)

    def _end(self, state: dict[str, Scratch], last: Multiplied) -> Launch:
        """The gradients by the first states are results."""
        found, operands = self.found, Operands()
        lines = self._sums(operands, state, last)
        for name in self._states:
            if f"dinitial_{name[1]}" in self.outputs:
                result = Output(self.outputs[f"dinitial_{name[1]}"])
                lines.append(operands.write(f"dinitial_{name[1]}", found.kind, result, found.of_state, f"sum_{name}"))
        return found.launch("grad_end", "next", operands, lines)

    def _sums(self, operands: Operands, state: dict[str, Scratch], last: Multiplied) -> list[str]:
        """`sum_dh` and `sum_dc`, the gradients by the states behind a step, of which step `next` has left a product."""
        found = self.found
        lines = [
            f"A sum_{name} = {operands.read(f'held_{name}', found.held, place, 'at')};" for name, place in state.items()
        ]
        if found.steps == 0:
            return lines
        added = operands.read("last", found.held, last.result, "at")
        goes_on = found.goes_on(operands, self.inputs.get("sequence_lens"), found.time("next"))
        return [*lines, f"if (next < steps && {goes_on}) {{", f"    sum_dh += {added};", "}"]

    # --- a step -----------------------------------------------------------------------------------------------------

    def _products(self, memory: WorkingMemory) -> tuple[list[Multiplied], list[Launch | Product]]:
        """Those of a step, and what comes before the first one."""
        found = self.found
        made: list[Multiplied] = []
        copies: list[Launch | Product] = []
        for one in self.cells[0].products:
            of_r, before = found.part_of_r(Input(self.inputs["r"]), one.rows, memory)
            left = memory.array(found.elements * one.rows.parts, found.kind)
            result = memory.array(found.elements, found.held)
            made.append(Multiplied(left, result, found.product(of_r, left, result, back=True)))
            copies += before
        return made, copies

    def _stage(self, number: int, products: Sequence[Multiplied], state: dict[str, Scratch]) -> Launch:
        """The kernel before a step's product of this number: what that multiplies, and at last the results."""
        found, operands, one = self.found, Operands(), self.cells[0].products[number]
        last = number + 1 == len(products)
        index, lengths = found.places.index, self.inputs.get("sequence_lens")
        wanted = [*one.left]
        if last:
            wanted += [*self._states, *(part for parts in self._results().values() for part in parts if part)]

        def load(name: str) -> str:
            return self._load(operands, name, products)

        lines = [
            f"const {index} step = next - 1u, time = {found.time('step')};",
            f"const {index} past = (d * steps + time) * isize1 + n;",
            *self._sums(operands, state, products[-1]),
            f"const bool goes_on = {found.goes_on(operands, lengths, 'time')};",
            *computed(self.cells, wanted, load),
        ]
        for k, name in enumerate(one.left):
            place = found.of_part(k, len(one.left), "row")
            lines.append(operands.write("left", found.kind, products[number].left, place, f"to_{name}"))
        if last:
            lines += self._written(operands, state)
        return found.launch(f"grad_step{number}", "next", operands, lines)

    def _results(self) -> dict[str, list[str]]:
        """The parts of those that somebody reads, by the names that the cell has for them; none where they are 0."""
        parts = {
            "d_gates": [f"gates{k}" for k in range(self.found.layer.gates)],
            "other": ["other0"],
            "d_peepholes": [f"peepholes{k}" if "p" in self.inputs else "" for k in range(3)],
        }
        return {name: parts[name] for name in parts if name in self.outputs}

    def _load(self, operands: Operands, name: str, products: Sequence[Multiplied]) -> str:
        """The expression of an operand of the cell."""
        found = self.found
        if name in self._states:
            arriving = f"sum_{name}"
            if name == "dh" and "dy" in self.inputs:
                arriving += f" + {operands.read('dy', found.kind, Input(self.inputs['dy']), found.of_result)}"
            return f"goes_on ? {arriving} : (A)0"
        if name in ("h", "c"):
            before = Input(self.inputs[f"{name}_before"])
            return operands.read(f"{name}_before", found.kind, before, found.of_part(0, 1, "past"))
        part = int(name[1:])
        if name[0] == "g":
            place = found.of_part(part, found.layer.saved_gates, "past")
            return operands.read("gates", found.kind, Input(self.inputs["gates"]), place)
        if name[0] == "p":
            return operands.read("p", found.kind, Input(self.inputs["p"]), found.of_part(part, 3, "d"))
        number = next(i for i, one in enumerate(self.cells[0].products) if name in one.results)
        if number + 1 == len(products):
            return "(A)0"
        return operands.read(f"product{number}", found.held, products[number].result, "at")

    def _written(self, operands: Operands, state: dict[str, Scratch]) -> list[str]:
        """What becomes of a step's results: beyond a sequence's length nothing has an influence, not even NaN."""
        found, lines = self.found, []
        for name, parts in self._results().items():
            result = Output(self.outputs[name])
            for k, part in enumerate(parts):
                value = f"goes_on ? to_{part} : (A)0" if part else "(A)0"
                lines.append(operands.write(name, found.kind, result, found.of_part(k, len(parts), "past"), value))
        for name, held in state.items():
            new = f"goes_on ? to_{name} : sum_{name}"
            lines.append(operands.write(f"next_{name}", found.held, held, "at", new))
        return lines


def _gradient(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, RecurrenceGrad)
    layer, inputs = op.forward, positions(node)
    directions, steps, batch, _ = shape(node.inputs[inputs["gates"]])
    kind, hidden = node.outputs[0].dtype, shape(node.inputs[inputs["r"]])[2]
    found = Recurrent(layer, kind, steps, batch, hidden, context.tf32 and kind is DType.FLOAT32)
    cells = tuple(gradient_cell(layer, d, found.held, peepholes="p" in inputs) for d in range(directions))
    return _Backward(found, inputs, in_use(op.outputs, context.used_outputs), cells).kernel()


for _name in ("RNN", "GRU", "LSTM"):
    launched(f"{_name}RecurrenceGrad", DOMAIN, covers=lambda node: True)(_gradient)
