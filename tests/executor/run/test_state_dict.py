"""Parameters by name, from mappings and files: all are set, or one error lists everything that differs."""

from __future__ import annotations

import argparse
import io
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, InvalidModel, OutOfMemory, UsageError
from graphkit.ir.limits import limited


def network(seed=0):
    x = gk.input("x", ["N", 3])
    h = gk.nn.batch_norm(gk.nn.linear(x, 4, name="fc1"), name="bn")
    return gk.Model({"y": gk.nn.linear(gk.relu(h), 2, name="fc2")}, seed=seed)


def assert_equal_states(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def test_state_dict_round_trip():
    source, target = network(1), network(2)
    result = target.load_state_dict(source.state_dict())
    assert result == ((), ())
    assert_equal_states(target.state_dict(), source.state_dict())
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(target.run({"x": x})["y"], source.run({"x": x})["y"])


def test_state_dict_contains_copies():
    net = network()
    state = net.state_dict()
    state["fc1_weight"][:] = 7
    assert not (net.params["fc1_weight"] == 7).any()
    net.load_state_dict(state)
    state["fc1_weight"][:] = 8
    assert (net.params["fc1_weight"] == 7).all()


def test_running_program_uses_the_new_values():
    net = network(1)
    x = np.ones((2, 3), np.float32)
    before = net.run({"x": x})["y"]
    net.load_state_dict(network(2).state_dict())
    assert not np.allclose(net.run({"x": x})["y"], before)


def test_all_differences_are_in_one_error_and_nothing_changes():
    net = network()
    before = net.state_dict()
    state = net.state_dict()
    del state["fc1_bias"], state["bn_running_mean"]
    state |= {
        "fc3_weight": np.ones(1), "fc2_weight": np.ones((2, 5), np.float32), "fc2_bias": np.ones(2, np.int64),
        "fc1_weight": np.zeros((4, 3), np.float32),
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        net.load_state_dict(state)
    assert str(caught.value).splitlines()[1:] == [
        "  missing: 'fc1_bias', 'bn_running_mean'",
        "  unexpected: 'fc3_weight'",
        "  'fc2_weight' has shape [2, 5], the parameter [2, 4]",
        "  'fc2_bias' has elements of int64, the parameter of float32",
    ]
    assert_equal_states(net.state_dict(), before)
    with pytest.raises(InputError, match="has shape"):
        net.load_state_dict(state, strict=False)
    assert_equal_states(net.state_dict(), before)


def test_names_may_differ_without_strict():
    net = network()
    kept = net.state_dict()
    result = net.load_state_dict({"fc2_bias": np.ones(2, np.float32), "other": np.ones(1)}, strict=False)
    assert result.unexpected_keys == ("other",)
    assert set(result.missing_keys) == kept.keys() - {"fc2_bias"}
    assert_equal_states(net.state_dict(), kept | {"fc2_bias": np.ones(2, np.float32)})


def test_arrays_of_which_none_matches_are_an_error():
    with pytest.raises(InputError, match=r"no name matches; the names given begin with 'module\.fc1_weight'"):
        network().load_state_dict({"module.fc1_weight": np.ones((4, 3))}, strict=False)
    with pytest.raises(InputError, match="no name matches"):
        network().load_state_dict({}, strict=False)


def test_nested_checkpoint_is_an_error_that_says_what_to_pass():
    with pytest.raises(InputError, match=r"'model' is a dict of its own: pass state\['model'\]"):
        network().load_state_dict({"model": network().state_dict(), "epoch": 3})


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_floats_are_converted_to_the_type_of_the_parameter(dtype):
    net = network()
    state = {name: array.astype(dtype) for name, array in network(5).state_dict().items()}
    net.load_state_dict(state)
    assert_equal_states(net.state_dict(), {name: array.astype(np.float32) for name, array in state.items()})


def test_float16_parameters():
    x = gk.input("x", ["N", 3], dtype="float16")
    net = gk.Model({"y": gk.nn.linear(x, 2, name="fc")})
    state = {"fc_weight": np.full((2, 3), 0.1, np.float32), "fc_bias": np.array([np.inf, np.nan], np.float32)}
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.params["fc_weight"], np.full((2, 3), 0.1, np.float16))
    np.testing.assert_array_equal(net.params["fc_bias"], [np.inf, np.nan])
    with pytest.raises(InputError, match="'fc_bias' has values of float32 that are too large for float16"):
        net.load_state_dict({**state, "fc_bias": np.array([1e6, 0], np.float32)})


def counting_network():
    count = gk.Value(gk.TensorType("int64", ()), "bn.num_batches_tracked", role="state")
    x = gk.input("x", ["N", 4])
    weight = gk.parameter("bn.running_var", (4,), "ones")
    return gk.Model.from_graph(gk.Graph([x, weight, count], [gk.mul(x, weight)]), {count.name: np.int64(3)})


def test_counts_of_batches():
    net = counting_network()
    variance = {"bn.running_var": np.full(4, 2.0, np.float32)}
    assert net.load_state_dict(variance) == ((), ())
    assert net.params["bn.num_batches_tracked"] == 3
    net.load_state_dict({**variance, "bn.num_batches_tracked": np.int32(8)})
    assert net.params["bn.num_batches_tracked"] == 8
    with pytest.raises(InputError, match="has elements of float32, the parameter of int64"):
        net.load_state_dict({**variance, "bn.num_batches_tracked": np.float32(8)})
    plain = network()
    names = {name: name.replace("_", ".", 1) for name in plain.params}
    state = {**plain.state_dict(names=names), "bn.num_batches_tracked": np.int64(1)}
    assert plain.load_state_dict(state, names=names) == ((), ())
    with pytest.raises(InputError, match=r"unexpected: 'other\.num_batches_tracked'"):
        plain.load_state_dict({**state, "other.num_batches_tracked": np.int64(1)}, names=names)


def test_other_names():
    net = network()
    names = {"fc1_weight": "first.weight", "fc1_bias": "first.bias"}
    state = network(3).state_dict(names=names)
    assert "first.weight" in state
    assert "fc1_weight" not in state
    net.load_state_dict(state, names=names)
    assert_equal_states(net.state_dict(), network(3).state_dict())
    with pytest.raises(InputError, match=r"missing: 'first\.weight'"):
        net.load_state_dict({n: a for n, a in state.items() if n != "first.weight"}, names=names)
    with pytest.raises(UsageError, match="has no parameter 'fc9_weight'"):
        net.load_state_dict(state, names={"fc9_weight": "a"})
    with pytest.raises(UsageError, match="the same name for two"):
        net.state_dict(names={"fc1_weight": "a", "fc2_weight": "a"})


def test_one_array_for_two_parameters_is_an_error():
    net = network()
    before = net.state_dict()
    state = {**network(1).state_dict(), "a": before["fc1_weight"]}
    for names in ({"fc1_weight": "a", "fc1_bias": "a"}, {"fc1_weight": "fc1_bias"}):
        with pytest.raises(UsageError, match=r"names= has the same name for two.*'fc1_weight' and 'fc1_bias'"):
            net.load_state_dict(state, names=names, strict=False)
    assert_equal_states(net.state_dict(), before)


def test_files(tmp_path):
    source = network(4)
    safetensors.numpy.save_file(source.state_dict(), tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **source.state_dict())
    for name in ("a.safetensors", "a.npz"):
        net = network()
        net.load_state_dict(tmp_path / name)
        assert_equal_states(net.state_dict(), source.state_dict())


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz"])
def test_damaged_files_are_errors_that_name_the_file(tmp_path, name):
    path = tmp_path / name
    for content in (b"", b"\x00" * 40, b"PK\x03\x04 no archive"):
        path.write_bytes(content)
        with pytest.raises(InvalidModel, match=f"a.{name.rpartition('.')[2]}"):
            network().load_state_dict(path)


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", fc1_weight=np.array([{}], object))
    with pytest.raises(InvalidModel, match=r"a\.npz"):
        network().load_state_dict(tmp_path / "a.npz")


def test_files_that_do_not_exist_and_unknown_types(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        network().load_state_dict(tmp_path / "no.safetensors")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UsageError, match=r"unknown type '\.txt'"):
        network().load_state_dict(tmp_path / "a.txt")
    with pytest.raises(InputError, match="must be a dict of arrays by name, or a path"):
        network().load_state_dict(3)


def test_a_file_with_a_whole_module_says_so(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(3, 4), tmp_path / "whole.pt")
    with pytest.raises(InvalidModel, match=r"whole\.pt: the file contains a whole module; .* save module\.state_dict"):
        network().load_state_dict(tmp_path / "whole.pt")
    torch.save({"options": argparse.Namespace(a=1)}, tmp_path / "other.pt")
    with pytest.raises(InvalidModel, match=r"objects that are not tensors \(argparse\.Namespace\)"):
        network().load_state_dict(tmp_path / "other.pt")


@in_one_item()
@pytest.mark.parametrize(
    "tied",
    ['{"other": "gone"}', '{"fc1_weight": "fc2_weight"}', '{"other": 3}', "[" * 100_000, "[1]"],
    ids=["gone", "parameter", "number", "deep", "list"],
)
def test_other_names_that_are_out_of_date_are_left_out(tied):
    net = network(1)
    net = gk.Model.from_graph(net.graph, dict(net.params.items()), meta={"tied": tied})
    state = net.state_dict()
    assert_equal_states(state, network(1).state_dict())
    net.load_state_dict(network(2).state_dict())
    assert_equal_states(net.state_dict(), network(2).state_dict())


def npz_member(array, shape=None):
    """Return an array as a member of an .npz file, with another shape in its header."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape if shape is None else shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


@in_one_item()
@pytest.mark.parametrize("shape", [(10**13,), (10**30,), (-1,), (3,)])
def test_npz_arrays_with_false_shapes_are_damaged(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("fc1_weight.npy", npz_member(np.ones(2, np.float32), shape))
    with pytest.raises(InvalidModel, match=r"a\.npz: array 'fc1_weight'"):
        network().load_state_dict(tmp_path / "a.npz")


@in_one_item()
@pytest.mark.parametrize(("place", "value"), [(6, 1), (8, 99), (8, 14), (4, 255)])
def test_npz_files_with_damaged_tables_are_damaged(tmp_path, place, value):
    path = tmp_path / "a.npz"
    np.savez(path, **network().state_dict())
    data = bytearray(path.read_bytes())
    data[place] = value  # of the first member
    data[data.index(b"PK\x01\x02") + place + 2] = value  # of its entry in the directory
    path.write_bytes(data)
    with pytest.raises(InvalidModel, match=r"a\.npz"):
        network().load_state_dict(path)


def test_npz_arrays_with_one_name_are_damaged(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("fc1_weight.npy", npz_member(np.ones(2, np.float32)))
        archive.writestr("fc1_weight", npz_member(np.ones(2, np.float32)))
    with pytest.raises(InvalidModel, match=r"a\.npz: array 'fc1_weight' is in the \.npz file twice"):
        network().load_state_dict(tmp_path / "a.npz")


def test_npz_arrays_beyond_the_memory_limit(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", fc1_weight=np.zeros(1 << 20, np.float32))
    with limited(memory=1 << 20), pytest.raises(OutOfMemory, match=r"a\.npz: array 'fc1_weight'"):
        network().load_state_dict(tmp_path / "a.npz")


@pytest.mark.pytorch
def test_tensors_without_elements_are_errors_that_name_them():
    torch = pytest.importorskip("torch")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for given, words in ((torch.empty(4, 3, device="meta"), "device 'meta'"), (nested, "nested tensor")):
        with pytest.raises(InputError, match=f"'fc1_weight' is a.*{words}"):
            network().load_state_dict({**network().state_dict(), "fc1_weight": given})
