"""graphkit export --precision: a model whose nodes mostly compute in float16 or bfloat16."""

from __future__ import annotations

from collections import Counter
from typing import Any

from graphkit.cli._compression import Comparison, CompressionData, check_output
from graphkit.cli._options import check_needed
from graphkit.cli._output import log, print_table, rounding_bar, show
from graphkit.data.images.feeding import Said
from graphkit.model import Model
from graphkit.quantisation.quantize import BATCH_SIZE
from graphkit.quantisation.reduced_precision import ReducedPrecision, reduce_precision

# Rows of the table of nodes in float32.
_ROWS = 20


def check_options(precision: str | None) -> None:
    """Raise UsageError for options that need --precision."""
    check_needed("--precision", precision is not None, ("spec", "keep_float32", "samples"))


def export(net: Model, source: Model | str, images: Said, o: dict[str, Any]) -> int:
    """Write the model, and return the exit code.

    Args:
        net: The model.
        source: The same, or the file that it was read from.
        images: Preprocessing of images among the inputs.
        o: Options of the command line by parameter name.
    """
    precision = o["precision"]
    check_output(o["output"], o["model"])
    data = CompressionData.read(
        net, o["spec"], None, (), (), o["samples"], BATCH_SIZE, images, finetunes=False, max_drop=None,
        purpose="measuring ranges",
    )  # fmt: skip
    samples = data.compared(net, o["inputs"], o["fill"], o["seed"], images)
    if data.samples is None and precision == "fp16":
        log("ranges are measured on one batch of inputs; to measure them on samples: --data")
    found = reduce_precision(
        source, precision, data=samples, keep_float32=o["keep_float32"], opset=o["opset"],
        external_root=o["external_root"],
    )  # fmt: skip
    results = _Precision(net, found, samples, None)
    results.generated = data.samples is None
    results.measure(data.labelled, None)
    return results.finish("export", o["model"], o["output"], found.notes, check=o["check"], as_json=o["as_json"])


class _Precision(Comparison):
    """The comparison of a model in float32 and in a lower precision."""

    found: ReducedPrecision

    def verify(self, rtol: float | None, atol: float | None) -> None:
        """Compare the float32 model in graphkit with the new one in ONNX Runtime, which has no bfloat16 on CPUs."""
        from graphkit.checks.verify import verify

        engine = "onnxruntime" if self.found.precision == "fp16" else "graphkit"
        if engine == "graphkit":
            log("ONNX Runtime has no kernels for bfloat16 on CPUs: the comparison runs both models in graphkit")
        with rounding_bar() as progress:
            self.verification = verify(
                self.net, self.samples.first(self.net), against=self.found.message, against_engine=engine, rtol=rtol,
                atol=atol, threads=self.threads, progress=progress,
            )  # fmt: skip

    def report(self, model: str) -> None:
        """Print all tables."""
        found = self.found
        total = len(found.lowered)
        self.print(f"{model}: {total} nodes in {found.precision}; {found.casts} Casts added", "")
        reasons = Counter((kept.operator, kept.reason) for kept in found.kept)
        if reasons:
            rows = [(operator, str(count), reason) for (operator, reason), count in reasons.most_common(_ROWS)]
            print_table("nodes in float32", ["operator", "nodes", "reason"], rows)
            if len(reasons) > _ROWS:
                show(f"and {len(reasons) - _ROWS} more reasons")
        if self.verification is not None:
            for item in self.verification.outputs:
                show(f"output {item}")
