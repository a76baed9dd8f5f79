"""Wrong arguments of public functions are named errors, and data of other libraries are taken."""

import contextlib
import inspect

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError, InputError, UsageError

X = np.random.default_rng(0).random((8, 4), np.float32)
LABELS, NUMBERS = np.arange(8) % 3, X[:, :1]


class Frame:
    """As pandas' tables: an array by `__array__`, items by the names of columns, an iterator over those."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, column):
        raise KeyError(column)

    def __iter__(self):
        return iter("abcd")


class Tracked(Frame):
    """As a tensor of PyTorch that requires a gradient."""

    requires_grad = True

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return Frame(self.array)


def network(units=3):
    return gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 4]), units, name="fc")})


def trainer(**options):
    return gk.Trainer(network(), **options)


def regression():
    return gk.Trainer(network(1), "mse")


WRONG = [None, 3, "text", X, [], {}, (1,), True, 1.5, -1, [None], ["a", "b"], b"x", 1j, [[1, 2], [3]], object(), len]


def operands(layer):
    """Return the arguments that a layer needs, by name."""
    x = gk.input("x", {"conv1d": ["N", 4, 9], "conv3d": ["N", 4, 9, 9, 9]}.get(layer, ["N", 4, 9, 9]))
    if layer in ("linear", "rnn", "gru", "lstm"):
        return {"x": gk.input("x", ["T", "N", 4]), "units": 3}
    if layer == "embedding":
        return {"indices": gk.input("i", ["N"], "int64"), "rows": 5, "features": 3}
    if layer.startswith("conv"):
        return {"x": x, "channels": 3, "kernel": 3}
    return {"x": x} | ({"kernel": 2} if "pool2d" in layer else {"groups": 2} if layer == "group_norm" else {})


@in_one_item()
@pytest.mark.parametrize("layer", [n for n in gk.nn.__all__ if n not in ("input", "parameter", "state")])
def test_layers_raise_named_errors(layer):
    """Each argument of each layer is each of many things."""
    function, good = getattr(gk.nn, layer), operands(layer)
    function(**good)
    for name in inspect.signature(function).parameters:
        for value in WRONG:
            with contextlib.suppress(GraphkitError):
                function(**(good | {name: value}))


def calls(value):
    """Public functions, each with one argument that is `value`."""
    net = network()
    yield lambda: gk.Model(value)
    yield lambda: gk.Model(gk.relu(gk.input("x", ["N"])), params=value, name="n")
    yield lambda: gk.Model(gk.relu(gk.input("x", ["N"])), inputs=value)
    yield lambda: gk.Model(gk.relu(gk.input("x", ["N"])), meta=value)
    yield lambda: gk.load(value)
    yield lambda: gk.grad(value)
    yield lambda: gk.grad(net, of=value)
    yield lambda: gk.grad(net, wrt=value)
    yield lambda: gk.gradient(value, [gk.input("x", ["N"])])
    yield lambda: gk.verify(value)
    yield lambda: gk.check_gradient(net, directions=value)
    yield lambda: gk.relu(value)
    yield lambda: gk.relu(gk.input("x", ["N"]), name=value)
    yield lambda: gk.constant(value)
    yield lambda: gk.input("x", value)
    yield lambda: gk.input("x", ["N"], value)
    yield lambda: gk.TensorType(value, ["N"])
    yield lambda: gk.TensorType("float32", value)
    yield lambda: gk.while_loop(value, value, value)
    yield lambda: gk.scan(value, value, value)
    yield lambda: net.run(value)
    yield lambda: net.run({"x": value})
    yield lambda: net.run({"x": X}, value)
    yield lambda: net.compile().run({"x": X}, out=value)
    yield lambda: net.compile().run({"x": X}, timeout=value)
    yield lambda: net.to_onnx(opset=value)
    yield lambda: gk.input("x", ["N", 4])[value]
    yield lambda: gk.input("x", ["N", 4]) + value
    yield lambda: net.compile(shapes=value)
    yield lambda: net.value(value)
    yield lambda: net.params[value]
    yield lambda: net.params.__setitem__("fc_bias", value)
    yield lambda: net.infer_shapes(x=value)
    yield lambda: net.compile(max_memory=value)
    yield lambda: net.compile(timeout=value)


def calls_of_training(value):
    """The same for functions of training and data."""
    data = (X, LABELS)
    yield lambda: gk.Trainer(value)
    yield lambda: trainer(freeze=value)
    yield lambda: trainer(targets=value)
    yield lambda: trainer().fit(value)
    yield lambda: trainer().fit((value, LABELS))
    yield lambda: trainer().fit((X, value))
    yield lambda: trainer().fit(data, value)
    yield lambda: trainer().fit(data, data, metrics=value)
    yield lambda: trainer().fit(data, callbacks=value)
    yield lambda: trainer().evaluate(value)
    yield lambda: trainer().evaluate(data, value)
    yield lambda: trainer().step(value, LABELS)
    yield lambda: trainer().step(X, value)
    yield lambda: trainer().save_model(value)
    yield lambda: trainer().resume(value)
    yield lambda: trainer().optimizer_state_bytes(value)
    yield lambda: gk.data.load(value)
    yield lambda: gk.data.load("digits", seed=value)
    yield lambda: gk.data.Dataset(value)
    yield lambda: gk.data.Dataset(X, value)
    yield lambda: gk.data.Dataset(X, LABELS, axes=value)
    yield lambda: gk.data.MapDataset(value)
    yield lambda: list(gk.data.Dataset(X).batches(value))
    yield lambda: gk.optim.get(value)
    yield lambda: gk.losses.get(value)
    yield lambda: gk.metrics.TopK(value)
    yield lambda: gk.init.Normal(value)
    yield lambda: gk.callbacks.EarlyStopping(2, monitor=value)
    yield lambda: gk.models.build(value)
    yield lambda: gk.data.Preprocess(mean=value)
    yield lambda: gk.data.Augment(flip=value)
    yield lambda: gk.data.Vocabulary(value)
    yield lambda: gk.data.described(value, value)
    yield lambda: gk.data.prefetch(value)
    yield lambda: gk.kvstore.create(value)
    yield lambda: gk.kvstore.create("local").init(value, value)
    yield lambda: gk.kvstore.create("local").set_optimizer(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", WRONG, ids=lambda value: f"{type(value).__name__} {str(value)[:9]}")
def test_public_functions_raise_named_errors(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (*calls(value), *calls_of_training(value)):
        with contextlib.suppress(GraphkitError):
            call()


def test_an_array_in_a_layer_says_how_to_make_a_value():
    with pytest.raises(
        UsageError, match=r"gk.nn.linear: x must be a graph value, not ndarray of float32\[8, 4\]; gk.constant"
    ):
        gk.nn.linear(X, 3)


def test_numbers_and_arrays_of_other_libraries_are_arguments():
    y = gk.nn.linear(gk.input("x", ["N", 4]), 3)
    assert gk.losses.mse(y, 0.5).type.shape == ()
    assert gk.losses.huber(y, np.zeros((1, 3), np.float32)).type.shape == ()
    gk.init.Normal(std=np.array(0.02))
    gk.nn.dropout(y, np.array(0.5))
    assert trainer(optimizer={"type": "sgd", "lr": 0.1}).optimizer.lr == 0.1
    assert gk.data.Dataset(X, LABELS, classes=np.unique(LABELS)).classes == ("0", "1", "2")
    executor = network().compile()
    executor.rng = np.array([1, 2])
    assert executor.rng == (1, 2)
    words = gk.data.Vocabulary.build(["a b c"])
    assert words.decode(words.encode("c a")) == words.decode(words.encode("c a").tolist()) == "c a"
    with pytest.raises(UsageError, match="numbers must be a list of integers"):
        words.decode(np.array([1.5]))
    with pytest.raises(UsageError, match=r"missing a required argument: 'texts'; it takes \(texts, "):
        gk.data.Vocabulary.build()


def test_unknown_and_missing_arguments_are_named():
    with pytest.raises(UsageError, match=r"Trainer.fit has no argument 'epoch'; did you mean 'epochs'\?"):
        trainer().fit((X, LABELS), epoch=3)
    with pytest.raises(UsageError, match=r"gk.nn.linear: missing a required argument: 'units'"):
        gk.nn.linear(gk.input("x", ["N", 4]))
    with pytest.raises(UsageError, match=r"freeze\[1\] is 3, but freeze must be a string or a list of strings"):
        trainer(freeze=["a", 3])


@in_one_item()
@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"lr": 0.1}, "SGD(0.1)"),
        ({"learning_rate": np.float32(0.5), "momentum": 0.9}, "SGD(0.5, momentum=0.9)"),
        ({"weight_decay": 1e-3}, "SGD(lr=..., weight_decay=0.001)"),
        ({"eps": 1e-7}, "Adam(lr=..., epsilon=1e-07)"),
        ({"lr": gk.optim.Cosine(0.1, steps=2)}, "SGD(...)"),
        ({"optimizer": "adamw", "lr": 0.1}, "AdamW(0.1)"),
        ({"optimizer": {"type": "adam"}, "lr": 0.1}, "Adam(0.1)"),
        ({"optimizer": gk.optim.Adam(0.1), "weight_decay": 0.5}, "Adam(lr=..., weight_decay=0.5)"),
    ],
)
def test_trainer_shows_where_optimizer_options_go(given, form):
    name = next(n for n in given if n != "optimizer")
    with pytest.raises(UsageError) as caught:
        trainer(**given)
    shown = f"gk.Trainer has no argument {name!r}; it is an option of the optimizer: optimizer=gk.optim.{form}"
    assert str(caught.value) == shown


@in_one_item()
@pytest.mark.parametrize("name", ["epochs", "batch_size", "metrics", "callbacks"])
def test_trainer_shows_which_arguments_belong_to_fit(name):
    shown = rf"no argument '{name}'; it is an argument of fit: trainer.fit\(data, {name}="
    with pytest.raises(UsageError, match=shown):
        trainer(**{name: 3})


def test_several_values_are_not_one_output():
    x = gk.input("x", ["N", 4])
    with pytest.raises(
        UsageError, match=r"outputs\['y'\] is a tuple, but .*; choose one .*, such as outputs\['y'\]\[0\]$"
    ):
        gk.Model({"y": gk.unique(x)})


def test_operands_of_a_model_are_its_inputs():
    net = network()
    assert net(X).shape == net(x=X).shape == (8, 3)
    for operands, named, message in [
        ((X, X), {}, r"model '.*' takes 1 input \(x\), but 2 were given"),
        ((), {}, "model '.*': no value is given for input 'x'"),
        ((X,), {"x": X}, "model '.*': input 'x' is given twice, by position and by name"),
        ((), {"z": X}, "model '.*' has no input 'z'; known: 'x'"),
    ]:
        with pytest.raises(UsageError, match=message):
            net(*operands, **named)


def test_integers_that_are_too_large_are_named():
    assert gk.constant(2**64 - 1).dtype is gk.DType.UINT64
    for given, message in [
        (2**64, "a constant contains an integer of 65 bits, which does not fit into int64 or uint64"),
        ([1, -(10**5000)], "a constant contains an integer of 16610 bits, which does not fit"),
        (object(), "the value is of type object; an array of objects must contain only strings"),
    ]:
        with pytest.raises(UsageError, match=message):
            gk.constant(given)
    with pytest.raises(InputError, match=r"a constant: 300 cannot be converted to an array: .* out of bounds for int8"):
        gk.constant(300, "int8")
    with pytest.raises(UsageError, match=r"the number 300 does not fit the dtype of k: int8\[2\]: cast the value"):
        gk.input("k", [2], "int8") + 300
    with pytest.raises(InputError, match="input 'x' contains an integer of 65 bits"):
        network().run({"x": [[2**64, 0, 0, 0]]})


def test_memory_is_a_number_or_a_text():
    assert network().compile(max_memory="1MB").run({"x": X})["y"].shape == (8, 3)
    with pytest.raises(GraphkitError, match="the limit is 100 bytes"):
        network().compile(max_memory="0.1KB").run({"x": np.zeros((4096, 4), np.float32)})
    with pytest.raises(UsageError, match=r"max_memory='lots': .* such as 500MB"):
        network().compile(max_memory="lots")


@pytest.mark.parametrize("metric", [gk.metrics.Accuracy, 3])
def test_a_metric_is_a_name_or_an_object(metric):
    with pytest.raises(UsageError, match=r"a metric must be a name \(accuracy, .*update\(output, target\)"):
        trainer().evaluate((X, LABELS), [metric])


def test_evaluation_without_metrics_takes_those_of_the_loss():
    assert regression().evaluate((X, NUMBERS)).keys() == {"mse"}
    assert trainer().evaluate((X, LABELS)).keys() == {"accuracy"}
    assert regression().evaluate((X, NUMBERS), None).keys() == {"mse"}
    with pytest.raises(InputError, match="the metrics of a regression are 'mse', 'rmse' and 'mae'"):
        regression().evaluate((X, NUMBERS), ["accuracy"])


@in_one_item()
@pytest.mark.parametrize(
    ("inputs", "targets"),
    [(X.tolist(), LABELS.tolist()), (Frame(X), Frame(LABELS)), (Tracked(X), Tracked(LABELS))],
    ids=["lists", "frames", "tracked"],
)
def test_lists_tables_and_tensors_are_data(inputs, targets):
    """They train to the bit as arrays do."""
    expected, again, stepped = trainer(seed=1), trainer(seed=1), trainer(seed=1)
    expected.fit((X, LABELS), epochs=2, batch_size=3)
    again.fit((inputs, targets), epochs=2, batch_size=3)
    np.testing.assert_array_equal(again.net.params["fc_weight"], expected.net.params["fc_weight"])
    assert again.evaluate((inputs, targets)) == expected.evaluate((X, LABELS))
    assert float(stepped.step(inputs, targets)) > 0
    assert network().run({"x": inputs})["y"].shape == (8, 3)


def test_whole_numbers_in_lists_become_the_type_of_the_input():
    assert trainer().fit(([[1, 2, 3, 4], [5, 6, 7, 8]], [0, 1]))[0]["loss"] > 0


def test_splits_are_not_one_data_set():
    splits = gk.data.Splits(gk.data.Dataset(X, LABELS), gk.data.Dataset(X, LABELS))
    with pytest.raises(UsageError, match=r"not Splits \(train, test\): train on its .train; .* or pass it as valid="):
        trainer().fit(splits)


@in_one_item()
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            gk.data.Dataset(X[:, :3], LABELS, name="rows"),
            r"rows: the array for input 'x' has shape \[8, 3\], but the model needs",
        ),
        (X, "a pair .inputs, targets. or a data set, but only ndarray of float32"),
        ("digits", "not the text 'digits'; to load a data set by its name or path, use gk.data.load"),
        ((X, LABELS.astype(str)), "targets contains texts, not numbers; to number them"),
        ((None, LABELS), "an input must be an array or nested lists of numbers, not None"),
        (((i for i in X), LABELS), r"an array, not a generator; use np.array\(list"),
        (("x", "y"), "contains texts, not numbers"),
        (([[1, 2], [3]], [0, 1]), "different lengths"),
        (
            (Frame(np.array([[1.0, "x"]] * 8, object)), LABELS),
            "an input mixes strings with 1.0 in one array: use one array",
        ),
        (
            (X, ["cat", "dog"] * 4),
            r"targets contains texts, not numbers; to number them, use np.unique\(targets, return_inverse=True\)",
        ),
        ((Frame(X.astype(object)), LABELS), r"objects such as 0\.[0-9]+; convert it with .astype\('float32'\)"),
    ],
)
def test_data_that_are_none_say_what_data_are(data, message):
    with pytest.raises(InputError, match=message):
        trainer().fit(data)
