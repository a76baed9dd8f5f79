"""Write docs/mxnet_operators.md: all operators of MXNet 1.9.1, and which of them graphkit reads.

python docs/mxnet_operators.py

mxnet_names.txt has the operators that MXNet 1.9.1 registers, without those of gradients: one a line, with its other
names. Whether an operator is read follows from the converters of graphkit.mxnet_io.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from markup import code, prose, table

from graphkit.mxnet_io import importer
from graphkit.mxnet_io.call import CONVERTERS

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "mxnet_operators.md"
NAMES = FOLDER / "mxnet_names.txt"
assert importer.import_model  # its import registers the converters

_HEAD = """\
# Operators of MXNet

graphkit reads {read} of the {count} operators that MXNet 1.9.1 registers for computations (those of gradients are left
out): {names_read} of {names_count} names. If a symbol has an operator that is not read, you get an error that lists all
such operators with their nodes. This page is written by `python docs/mxnet_operators.py`; a test checks that it is up
to date.

- **read**: `yes`; `partly`, with the limit in the last column; or `no`. A node beyond a limit is rejected with an error
  that names the node and the attribute, except where the column says that the result differs.
- Operators that update weights (`sgd_update`, ...) are not read: graphkit's own optimizers train a model. Nor are
  operators that call Python (`Custom`), read image files (`_cvimread`), change images at random for training
  (`_image_random_brightness`), assign to their operand (`_set_value`, `_npi_boolean_mask_assign_scalar`), or work on
  sparse graphs (`_contrib_dgl_subgraph`). Eigenvalues of matrices that are not symmetric, and singular values
  (`_npi_svd`), have no counterpart.
"""
_CALIBRATED = (
    "MXNet's CPU kernel writes the range of int8 for uint8 data, and does not rescale the int8 bias "
    "to the scale of the products; here both are right"
)
_RANDOM = "sizes must be given; the same distribution, but the numbers differ"
_KNOWN_SIZES = "the sizes of the operand must be known"
# Operator -> what is not read, or differs.
LIMITS = {
    "BatchNorm": "not `output_mean_var`",
    "Deconvolution": "not channels last",
    "GroupNorm": "not `output_mean_var`",
    "IdentityAttachKLSparseReg": "training leaves out the penalty, and needs a loss",
    "LayerNorm": "not `output_mean_var`",
    "Pooling": "`pooling_convention` same for max pooling over one axis",
    "SoftmaxOutput": "training with `out_grad` needs a loss",
    "_arange": "not `infer_range`",
    "_contrib_ROIAlign": "regions with a negative batch index give 0; MXNet 1.9 does not set their elements on the CPU",
    "_contrib_SyncBatchNorm": "not `output_mean_var`",
    "_contrib_quantized_act": "only relu",
    "_contrib_quantized_batch_norm": "only with a calibrated range",
    "_contrib_quantized_conv": _CALIBRATED,
    "_contrib_quantized_elemwise_mul": "MXNet 1.9 wraps around beyond the calibrated range; here the result is clipped",
    "_contrib_quantized_rnn": "weights are not rounded to 8 bits",
    "_image_adjust_lighting": "a grey image stays as it is; MXNet 1.9 does not set its elements",
    "_image_flip_left_right": "MXNet 1.9 fills the middle column of an odd width with other numbers; here it stays",
    "_linalg_extractdiag": _KNOWN_SIZES,
    "_linalg_extracttrian": _KNOWN_SIZES,
    "_linalg_gemm": "not `axis`",
    "_linalg_gemm2": "not `axis`",
    "_linalg_makediag": _KNOWN_SIZES,
    "_linalg_maketrian": _KNOWN_SIZES,
    "_np_diag": _KNOWN_SIZES,
    "_np_diagflat": _KNOWN_SIZES,
    "_np_diagonal": _KNOWN_SIZES,
    "_np_roll": _KNOWN_SIZES,
    "_np_trace": _KNOWN_SIZES,
    "_npi_arctan2": "a negative zero counts as zero",
    "_npi_copysign": "a negative zero counts as zero",
    "_npi_pad": "only constant, edge and reflect; not `reflect_type` odd",
    "_npi_choice": _RANDOM,
    "_npi_delete": "negative positions in a tensor count from the end, as in numpy; MXNet 1.9 ignores them",
    "_npi_gamma": _RANDOM,
    "_npi_insert_tensor": "positions that the run computes are not checked",
    "_npi_multinomial": f"{_RANDOM}; if the run computes probabilities, no error is raised for a sum above 1",
    "_npi_norm": "not norms of matrices that need singular values: `ord` 2, -2 and nuclear",
    "_npi_percentile": (
        "NaN gives NaN, as in numpy; MXNet 1.9 sorts NaN to any place. If the run computes `q`, numbers that are not "
        "from 0 to 100 give NaN"
    ),
    "_npi_tensorinv": _KNOWN_SIZES,
    "_npi_tensorsolve": _KNOWN_SIZES,
    "_npx_constraint_check": "no error is raised if the condition is false",
    "_npx_reshape": "not a code -3 after -4, -5, -6 or -1",
    "_random_exponential": _RANDOM,
    "_random_gamma": _RANDOM,
    "_random_generalized_negative_binomial": _RANDOM,
    "_random_negative_binomial": f"`p` must be above 0 and at most 1; {_RANDOM}",
    "_random_negative_binomial_like": "`p` must be above 0 and at most 1",
    "_random_normal": _RANDOM,
    "_random_poisson": _RANDOM,
    "_random_uniform": _RANDOM,
    "_random_randint": _RANDOM,
    "_sample_multinomial": "probabilities are a vector or a matrix; the numbers differ",
    "_sg_mkldnn_conv": "quantised, integers may differ by 1; a calibrated range is needed",
    "_sg_mkldnn_fully_connected": "quantised, a calibrated range or a real result is needed",
    "_slice_assign": _KNOWN_SIZES,
    "_slice_assign_scalar": _KNOWN_SIZES,
    "_unravel_index": "only the first size may be unknown",
    "_while_loop": "rows of iterations that do not run are 0; MXNet leaves them undefined",
    "diag": _KNOWN_SIZES,
    "log_softmax": "not `use_length`, which MXNet 1.9 cannot run either",
    "softmin": "not `use_length`, which MXNet 1.9 cannot run either",
}  # fmt: skip


def groups() -> list[list[str]]:
    """Return the operators of MXNet 1.9.1: each is a list of its names, the first one being the main one."""
    return [line.split() for line in NAMES.read_text("utf-8").splitlines()]


def is_read(names: Iterable[str]) -> bool:
    return any(name in CONVERTERS for name in names)


def _row(names: list[str]) -> list[str]:
    limit = LIMITS.get(names[0], "")
    read = is_read(names)
    others = ", ".join(map(code, names[1:]))
    return [code(names[0]), others, ("partly" if limit else "yes") if read else "no", prose(limit) if read else ""]


def page() -> str:
    found = groups()
    names = [name for group in found for name in group]
    head = _HEAD.format(
        read=sum(map(is_read, found)), count=len(found), names_read=sum(name in CONVERTERS for name in names),
        names_count=len(names),
    )  # fmt: skip
    columns = ["operator", "other names", "read", "limit"]
    plain = [_row(group) for group in found if not group[0].startswith("_np")]
    numpy = [_row(group) for group in found if group[0].startswith("_np")]
    other = ", ".join(code(name) for name in sorted(CONVERTERS.keys() - set(names)))
    return "\n\n".join([
        head.rstrip(),
        "## Operators of mx.nd and mx.sym",
        table(columns, plain),
        "## Operators of mx.np and mx.npx",
        table(columns, numpy),
        "## Names of other versions",
        f"Older versions of MXNet and MXNet 2 have these further names: {other}.",
    ]) + "\n"  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
