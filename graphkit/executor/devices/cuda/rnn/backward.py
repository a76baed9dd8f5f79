"""The backward recurrence of a layer: from the gradients of its results to those of its gates.

A step is a kernel that writes the gradients of all gates, and a matrix product of these with r, for all directions in
one call. A GRU without linear_before_reset has two of each. The kernel of the next step adds the product to the
gradient of the state, but only within the length of a sequence. After its end, the gradient of the state is passed on
unchanged.
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
    """The backward kernel of a layer.

    inputs, outputs: positions of the operands that are present, and of the results that are used, by name.

    In working memory, the gradient of h before a step does not contain the last product of the step. The kernels that
    read it add the product.
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
            launches.pop()  # the product of the first step is not used
        return CardKernel(tuple(launches), memory.bytes)

    @property
    def _states(self) -> tuple[str, ...]:
        return ("dh", "dc")[: self.found.layer.states]

    # --- before the first step, and after the last ------------------------------------------------------------------

    def _begin(self, state: dict[str, Scratch]) -> Launch:
        """Return the launch that sets the gradients of the last states to the operands, or to 0."""
        found, operands, lines = self.found, Operands(), []
        for name, place in state.items():
            given, end = self.inputs.get(f"dy_{name[1]}"), "(A)0"
            if given is not None:
                end = operands.read(f"dy_{name[1]}", found.kind, Input(given), found.of_state)
            lines.append(operands.write(f"held_{name}", found.held, place, "at", end))
        return found.launch("grad_begin", "step", operands, lines)

    def _end(self, state: dict[str, Scratch], last: Multiplied) -> Launch:
        """Return the launch that writes the gradients of the initial states to the results."""
        found, operands = self.found, Operands()
        lines = self._sums(operands, state, last)
        for name in self._states:
            if f"dinitial_{name[1]}" in self.outputs:
                result = Output(self.outputs[f"dinitial_{name[1]}"])
                lines.append(operands.write(f"dinitial_{name[1]}", found.kind, result, found.of_state, f"sum_{name}"))
        return found.launch("grad_end", "next", operands, lines)

    def _sums(self, operands: Operands, state: dict[str, Scratch], last: Multiplied) -> list[str]:
        """Return lines that declare `sum_dh` and `sum_dc`: the gradients of the states after a step.

        They add the last product of step `next`, which was computed before.
        """
        found = self.found
        lines = [
            f"A sum_{name} = {operands.read(f'held_{name}', found.held, place, 'at')};" for name, place in state.items()
        ]
        if found.steps == 0:
            return lines
        added = operands.read("last", found.held, last.result, "at")
        is_within = found.is_within(operands, self.inputs.get("sequence_lens"), found.time("next"))
        return [*lines, f"if (next < steps && {is_within}) {{", f"    sum_dh += {added};", "}"]

    # --- a step -----------------------------------------------------------------------------------------------------

    def _products(self, memory: WorkingMemory) -> tuple[list[Multiplied], list[Launch | Product]]:
        """Return the products of a step, and launches that must run before the first step."""
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
        """Return the kernel before product `number` of a step.

        It computes the left factor of the product; before the last product, also the results of the step.
        """
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
            f"const bool is_within = {found.is_within(operands, lengths, 'time')};",
            *computed(self.cells, wanted, load),
        ]
        for k, name in enumerate(one.left):
            place = found.of_part(k, len(one.left), "row")
            lines.append(operands.write("left", found.kind, products[number].left, place, f"to_{name}"))
        if last:
            lines += self._written(operands, state)
        return found.launch(f"grad_step{number}", "next", operands, lines)

    def _results(self) -> dict[str, list[str]]:
        """Return, for each used result, the names of its parts in the cell; "" for a part that is 0."""
        parts = {
            "d_gates": [f"gates{k}" for k in range(self.found.layer.gates)],
            "other": ["other0"],
            "d_peepholes": [f"peepholes{k}" if "p" in self.inputs else "" for k in range(3)],
        }
        return {name: parts[name] for name in parts if name in self.outputs}

    def _load(self, operands: Operands, name: str, products: Sequence[Multiplied]) -> str:
        """Return the expression of an operand of the cell."""
        found = self.found
        if name in self._states:
            arriving = f"sum_{name}"
            if name == "dh" and "dy" in self.inputs:
                arriving += f" + {operands.read('dy', found.kind, Input(self.inputs['dy']), found.of_result)}"
            return f"is_within ? {arriving} : (A)0"
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
        """Return lines that write the results of a step. After the end of a sequence, they are 0, even for NaN."""
        found, lines = self.found, []
        for name, parts in self._results().items():
            result = Output(self.outputs[name])
            for k, part in enumerate(parts):
                value = f"is_within ? to_{part} : (A)0" if part else "(A)0"
                lines.append(operands.write(name, found.kind, result, found.of_part(k, len(parts), "past"), value))
        for name, held in state.items():
            new = f"is_within ? to_{name} : sum_{name}"
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
