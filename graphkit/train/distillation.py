"""A loss that also compares a model with a teacher (knowledge distillation)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from graphkit.errors import GraphkitError, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Value
from graphkit.ir.origin import titled
from graphkit.ir.subgraph import inline
from graphkit.model import Model
from graphkit.ops import F, constant
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.training.to_training import to_inference
from graphkit.signatures import typed
from graphkit.train.arguments import FRACTION, POSITIVE, real
from graphkit.train.loss_functions import kl_divergence
from graphkit.train.named_losses import Loss, get
from graphkit.train.probabilities import logits_of
from graphkit.train.programs.weights import Term


@dataclass(frozen=True)
class DistillationLoss(Loss):
    teacher: Model | None = None
    output: str = ""
    temperature: float = 1.0
    weight: float = 0.0

    def term(self, graph: Graph, output: Value, target: Value, sample_weight: Value | None = None) -> Term:
        """Return (1 - weight) * loss + weight * T^2 * divergence."""
        if self.class_weights is not None or self.ignore_index is not None:
            raise UsageError("a loss with a teacher has no class_weights and no ignore_index: leave them out")
        hard = super().term(graph, output, target, sample_weight)
        wanted = self._teacher_logits(graph)
        if wanted.dtype is not output.dtype:
            wanted = F.cast(wanted, to=output.dtype)
        if wanted.rank != output.rank or wanted.tensor.known_shape[-1] != output.tensor.known_shape[-1]:
            raise UsageError(
                f"the teacher's output {self.output!r} is {wanted.tensor}, but the model's logits are {output.tensor}: "
                "they need the same classes"
            )
        cooled = [F.div(v, scalar_like(self.temperature, v)) for v in (output, wanted)]
        soft = kl_divergence(cooled[0], F.softmax(cooled[1], axis=-1), sample_weight)
        factors = 1.0 - self.weight, self.weight * self.temperature**2
        parts = [F.mul(scalar_like(f, v), v) for f, v in zip(factors, (hard.mean, soft), strict=True)]
        return Term(F.add(*parts), hard.weight)

    def _teacher_logits(self, graph: Graph) -> Value:
        assert self.teacher is not None
        teacher = self.teacher
        given = {graph.name_of(v): v for v in graph.inputs if v.role == "data"}
        if len(given) == len(teacher.inputs) == 1:
            given = dict(zip(teacher.inputs, given.values(), strict=True))
        if missing := [name for name in teacher.inputs if name not in given]:
            raise UsageError(
                f"the teacher {titled(teacher.graph, 'model')} needs an input {missing[0]!r}, which the model does not "
                f"have{did_you_mean(missing[0], given)}"
            )
        read = to_inference(teacher.graph).replace(updates=())
        names = [read.name_of(v) for v in read.inputs]
        arguments = [given[n] if n in given else constant(teacher.params[n]) for n in names]
        try:
            results = dict(zip(read.output_names, inline(read, arguments), strict=True))
        except GraphkitError as error:
            raise UsageError(
                f"the teacher {titled(teacher.graph, 'model')} does not accept the inputs of the model: {error}"
            ) from None
        return logits_of(results[self.output], self.of_logits)


@typed("gk.losses.distillation")
def distillation(
    teacher: Model,
    loss: str | Loss = "softmax_cross_entropy",
    *,
    temperature: float = 2.0,
    weight: float = 0.5,
    output: str | None = None,
) -> Loss:
    """Return a loss that also compares the logits with those of a teacher (Hinton, Vinyals and Dean, 2015).

    It is (1 - weight) * loss + weight * T^2 * KL, where KL is the mean over all rows of sum(t (log t - log p)), with t
    = softmax(teacher's logits / T) and p = softmax(logits / T) along the last axis. The teacher runs in inference mode,
    as part of the training step, and gets the same inputs as the model: with mixup or cutmix, the mixed inputs. The
    teacher is not trained, and not saved with the model.

    Args:
        teacher: A model with the same classes. Its inputs must have the names of the inputs of the model. If both have
            only one input, the names may differ.
        loss: The loss for the targets. It must be a loss of logits with a Softmax, without class_weights and
            ignore_index.
        temperature: T.
        weight: The share of the comparison with the teacher, from 0 to 1.
        output: The teacher's output, if it has several.

    Raises:
        UsageError: The loss has no logits, or the teacher does not have the output.
    """
    found = get(loss)
    if found.of_logits != "Softmax" or not (found.classes or found.probabilities):
        raise UsageError(f"gk.losses.distillation: the loss {found.name!r} is not a loss of logits with a Softmax")
    if output is None and len(teacher.outputs) > 1:
        raise UsageError(
            f"gk.losses.distillation: the teacher has several outputs, {', '.join(teacher.outputs)}: choose one with "
            "output="
        )
    if output is not None and output not in teacher.outputs:
        raise UsageError(
            f"gk.losses.distillation: the teacher has no output {output!r}{did_you_mean(output, teacher.outputs)}"
        )
    t = real("gk.losses.distillation", "temperature", temperature, POSITIVE)
    share = real("gk.losses.distillation", "weight", weight, FRACTION)
    options = {**found.options, "teacher": teacher.name, "temperature": t, "weight": share}
    own = {field.name: getattr(found, field.name) for field in fields(Loss)} | {"options": options}
    return DistillationLoss(**own, teacher=teacher, output=output or teacher.outputs[0], temperature=t, weight=share)
