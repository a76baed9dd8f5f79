"""Operators as older versions of MXNet wrote them, and attributes that a converter refuses."""

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.mxnet_io.importer import import_model
from tests.mxnet_io.operator_cases import case, floats, symbol_of
from tests.mxnet_io.operator_checks import imported

X, W, B = floats(2, 3, 6, 6), floats(4, 3, 3, 3, seed=1), floats(4, seed=2)
# Attributes with all the values that their versions wrote, and in their spelling.
OLD = [
    case("Convolution", X, W, B, gives=X, cudnn_off="False", cudnn_tune="None", dilate="(1,1)", kernel="(3,3)",
         layout="None",
         no_bias="False", num_filter="4", num_group="1", pad="(1,1)", stride="(2,2)", workspace="1024"),
    case("Pooling", X, gives=X, cudnn_off="False", global_pool="False", kernel="(2L, 2L)", pad="(0L, 0L)",
         pool_type="max",
         pooling_convention="valid", stride="(2L, 2L)"),
    case("_PlusScalar", X, gives=X, scalar="1.5"),
    case("_RDivScalar", X, gives=X, scalar="2"),
    case("ElementWiseSum", X, X, gives=X, num_args="2"),
    case("Reshape", X, gives=X, target_shape="(0,108)", keep_highest="False", reverse="False", shape="()"),
    case("SliceChannel", X, gives=[X, X, X], axis="1", num_outputs="3", squeeze_axis="1"),
    case("LeakyReLU", X, gives=X, act_type="leaky", lower_bound="0.125", slope="0.1", upper_bound="0.334"),
    case("Crop", X, gives=X, center_crop="False", h_w="(4,4)", num_args="1", offset="(1,1)"),
    case("SwapAxis", X, gives=X, dim1="1", dim2="2"),
    case("transpose", X, gives=X, axes="(0,2,3,1)"),
    case("Softmax", X[:, :, 0, 0], floats(2), gives=X, labels=[1], grad_scale="1", ignore_label="-1",
         multi_output="False",
         normalization="null", out_grad="False", preserve_shape="False", use_ignore="False"),
    case("broadcast_plus", X, X[:1], gives=X),
    case("Cast", X, gives=X, dtype="float64"),
    case("LRN", X, gives=X, alpha="0.0001", beta="0.75", knorm="2", nsize="3"),
    case("L2Normalization", X, gives=X, eps="1e-10", mode="instance"),
    case("UpSampling", X, gives=X, multi_input_mode="concat", num_args="1", num_filter="0", sample_type="nearest",
         scale="2",
         workspace="512"),
]  # fmt: skip


def outputs(document, folder):
    path = folder / "old-symbol.json"
    path.write_text(json.dumps(document))
    feeds = {f"x{i}_{j}": v for i, item in enumerate(OLD) for j, v in enumerate(item.operands) if j not in item.labels}
    found = import_model(path, params={}, shapes={name: v.shape for name, v in feeds.items()})
    return list(gk.Model.from_graph(found.graph, found.params).run(feeds).values())


@pytest.mark.parametrize("generation", ["0.8", "0.11"])
def test_forms_of_a_node(generation, tmp_path):
    document = json.loads(symbol_of(OLD))
    wanted = outputs(document, tmp_path)
    del document["attrs"], document["node_row_ptr"]
    for node in document["nodes"]:
        attributes = node.pop("attrs", {})
        if node["op"] == "null":
            attributes = {"lr_mult": "1.0"} if generation == "0.8" else {"__lr_mult__": "1.0"}
        if generation == "0.8":
            is_variable = node["op"] == "null"
            node |= {"param": {} if is_variable else attributes, "backward_source_id": -1}
            node["attr"] = attributes if is_variable else {"ctx_group": "stage1", "weight_lr_mult": "2.0"}
            node["inputs"] = [entry[:2] for entry in node["inputs"]]
        elif attributes:
            node["attr"] = attributes
    if generation == "0.8":
        document["heads"] = [head[:2] for head in document["heads"]]
    for a, b in zip(outputs(document, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


REFUSED = [
    (case("Deconvolution", X, W, gives=X, kernel=(3, 3), num_filter=3, layout="NHWC"),
         "Deconvolution with channels last"),
    (case("BatchNorm", X, B, B, B, B, gives=X, output_mean_var=True), "output_mean_var=True"),
    (case("Pooling", X, gives=X, kernel=(2, 2), pool_type="lp", p_value=4), "p_value 4: MXNet has 1, 2 and 3"),
    (case("norm", X, gives=X, ord=3), "ord 3: norms of order 1 and 2"),
    (case("linalg_gemm2", X, X, gives=X, axis=-3), "axis: matrices whose rows"),
    (case("_npi_pad", X, gives=X, pad_width=((0, 0),) * 4, mode="maximum"), "mode maximum"),
    (case("softmin", X, floats(2), gives=X, use_length=True), "use_length: softmin"),
    (case("_random_uniform", gives=X, shape=(0, 3)), "sizes that are inferred"),
    (case("_np_sum", X, gives=X, initial=1.0), "initial: a reduction"),
]  # fmt: skip
WRONG = [
    (case("Convolution", X, W, gives=X, kernel=(3, 3), num_filter=3, no_bias=True, stride=(1,)),
         "equally many numbers"),
    (case("Pooling", X, gives=X, kernel=(2, 2), pool_type="median"), "pool_type is 'median'"),
    (case("transpose", X, gives=X, axes=(0, 1, 2, 3), order="F"), "unknown attributes: order=F"),
    (case("Reshape", X, gives=X, shape=(0, 0, 0, 0, 0)), "an axis that a tensor of rank 4 does not have"),
    (case("FullyConnected", X, floats(5, 108), gives=X, num_hidden=5), "input 2 is missing"),
    (case("Activation", X, gives=X, act_type="relu", slope="x"), "unknown attributes: slope=x"),
    (case("clip", X, gives=X, a_min="low", a_max=1), "a_min must be a number, not 'low'"),
    (case("sum", X, gives=X, axis=1, keepdims="maybe"), "keepdims must be True or False"),
    (case("_npi_pad", X, gives=X, pad_width=(1, 2)), "pad_width must contain pairs of integers"),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize(("item", "message"), REFUSED, ids=lambda v: getattr(v, "op", ""))
def test_unsupported_attributes(item, message, tmp_path):
    with pytest.raises(UnsupportedError, match=rf"node '{item.op}_0' \({item.op}\): .*{message}"):
        imported([item], tmp_path)


@in_one_item()
@pytest.mark.parametrize(("item", "message"), WRONG, ids=lambda v: getattr(v, "op", ""))
def test_wrong_attributes(item, message, tmp_path):
    with pytest.raises(InvalidModel, match=rf"node '{item.op}_0' \({item.op}\).*{message}"):
        imported([item], tmp_path)
