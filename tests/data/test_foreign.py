"""Training from data as other libraries have them."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.data import Dataset
from graphkit.errors import InputError, UsageError

N = 20


def arrays():
    rng = np.random.default_rng(5)
    return rng.standard_normal((N, 6), np.float32), rng.integers(0, 3, N)


def trainer(**options):
    x = gk.input("x", ["N", 6])
    return gk.Trainer(gk.Model({"logits": gk.nn.linear(x, 3, name="fc")}, seed=0), seed=3, threads=1, **options)


def weights(data, valid=None, **options):
    found = trainer()
    found.fit(data, valid, batch_size=8, **({"epochs": 2, "metrics": ["accuracy"]} | options))
    return found.net.params["fc_weight"].tobytes(), found.updates


class Endless:
    """Has a length, and an item at every index."""

    def __init__(self):
        self.x, self.y = arrays()
        self.asked = []

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.asked.append(index)
        return self.x[index % N], self.y[index % N]


class Samples:
    """An iterable of samples, as PyTorch's IterableDataset."""

    def __init__(self, batch=None):
        self.x, self.y = arrays()
        self.batch = batch

    def __iter__(self):
        for i in range(0, N, self.batch or 1):
            part = slice(i, i + self.batch) if self.batch else i
            yield self.x[part], self.y[part]


def in_order():
    """Train with unshuffled batches of 8."""
    found = trainer()
    for _ in range(2):
        for inputs, targets in Dataset(*arrays()).batches(8, shuffle=False):
            found.step(inputs, targets)
    return found.net.params["fc_weight"].tobytes(), found.updates


def test_a_length_bounds_what_is_asked_for():
    data = Endless()
    assert weights(data, data) == weights(arrays())
    assert set(data.asked) == set(range(N))
    assert trainer().evaluate(data) == trainer().evaluate(arrays())


@pytest.mark.parametrize("batch", [None, 8], ids=["samples", "batches"])
def test_iterables(batch):
    assert weights(Samples(batch), Samples(batch)) == in_order()
    assert weights(lambda: iter(Samples(batch))) == in_order(), "a function that returns a generator"


def test_a_generator_runs_once():
    with pytest.raises(InputError, match="there were no data in epoch 2; a generator runs only once: pass a function"):
        weights(iter(Samples()))
    assert weights(iter(Samples()), epochs=1)[1] == 3


def test_forms_of_items():
    x, y = arrays()
    straight = weights((x, y))
    assert weights([(x[i], y[i]) for i in range(N)]) == straight
    assert weights([{"x": x[i], "target": y[i]} for i in range(N)]) == straight
    assert weights(({"x": x}, {"target": y})) == straight
    assert weights(Dataset({"x": x}, {"target": y})) == straight
    assert weights([({"x": x[i]}, {"target": int(y[i])}) for i in range(N)]) == straight


def test_a_list_of_two_is_two_samples_or_a_pair():
    x, y = (array[:2] for array in arrays())
    straight = weights((x, y))
    assert weights([x, y]) == weights([x.tolist(), y.tolist()]) == straight
    assert weights([(x[0], y[0]), (x[1], y[1])]) == straight
    assert weights([{"x": x[0], "target": y[0]}, {"x": x[1], "target": y[1]}]) == straight
    assert weights([{"x": x}, {"target": y}]) == straight
    with pytest.raises(InputError, match=r"train is a list of 2 items, so it was read as a pair .*MapDataset\(list\)"):
        weights([(x[0], y[0]), (x[1],)])


def test_two_samples_of_two_inputs():
    a, b = gk.input("a", ["N", 2]), gk.input("b", ["N", 2])
    net = gk.Model({"y": gk.nn.linear(a + b, 1, name="fc")}, seed=0)

    def trained(data):
        found = gk.Trainer(gk.Model.from_graph(net.graph, dict(net.params)), "mse", seed=3, threads=1)
        found.fit(data, batch_size=2, epochs=1)
        return found.net.params["fc_weight"].tobytes()

    rows, more = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]])
    targets = np.float32([[1], [2]])
    straight = trained(({"a": rows, "b": more}, targets))
    assert trained([{"a": rows, "b": more}, targets]) == straight
    assert trained([((rows[0], more[0]), targets[0]), ((rows[1], more[1]), targets[1])]) == straight


def test_dicts_of_targets():
    x = gk.input("x", ["N", 6])
    net = gk.Model({"a": gk.nn.linear(x, 1, name="a"), "b": gk.nn.linear(x, 2, name="b")}, seed=0)

    def loss(a, b, left, right):
        return gk.reduce_mean(gk.abs(a - left), keepdims=False) + gk.reduce_mean(gk.abs(b - right), keepdims=False)

    types = {"left": gk.TensorType("float32", ["N", 1]), "right": gk.TensorType("float32", ["N", 2])}
    rng = np.random.default_rng(0)
    inputs = rng.random((N, 6), np.float32)
    targets = {"left": rng.random((N, 1), np.float32), "right": rng.random((N, 2), np.float32)}
    found = gk.Trainer(net, loss, targets=types, threads=1)
    history = found.fit((inputs, targets), (inputs, targets), batch_size=8, metrics=["mae"])
    assert np.isfinite(history[0]["valid_mae"])
    assert found.updates == 3
    part = Dataset(inputs, targets).split(0.25).test
    assert {name: array.shape for name, array in part.targets.items()} == {"left": (5, 1), "right": (5, 2)}
    with pytest.raises(
        InputError, match=r"^data: .*different numbers of samples: x has 20, target left has 20, target right has 19; "
    ):
        Dataset(inputs, targets | {"right": targets["right"][1:]})


@in_one_item()
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((4, 6), np.float32), "train must be a pair (inputs, targets) or a data set, but only ndarray"),
        ({"x": np.zeros((4, 6), np.float32)}, "train must be a pair (inputs, targets) or a data set, but only a dict"),
        (7, "train must be a pair (inputs, targets), a Dataset, an object with"),
        ([1, 2, 3], "train: each item must be a pair (inputs, targets) or a dict by name, not "),
        ([], "the data set has no samples"),
        ([{"z": 1}] * 3, "an item has 'z'; none of these is an input of the model"),
        ([(np.zeros(6), 0), (np.zeros(5), 0), (np.zeros(6), 0)], "samples of one batch must have one shape"),
        (lambda: iter([(np.zeros((1, 2, 6)), 0)]), "rank 3; the model needs rank 2 (batches) or 1 (samples)"),
        (lambda: iter([]), "there were no data in epoch 1"),
    ],
    ids=["array", "dict", "number", "numbers", "empty", "names", "shapes", "rank", "nothing"],
)
def test_what_is_no_data_set(data, message):
    with pytest.raises(InputError) as caught:
        weights(data)
    assert message in str(caught.value)


@in_one_item()
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            3, InputError,
            "must be a pair (inputs, targets), a Dataset, an object with __len__ and __getitem__, or an iterable, "
            "not 3",
        ),
        (
            np.zeros((4, 3), np.float32), InputError,
            "must be a pair (inputs, targets) or a data set, but only ndarray of float32[4, 3] is given",
        ),
        (
            lambda n: n, InputError,
            "is a function that needs arguments; a function that returns data must not need any",
        ),
        (
            gk.data.Splits(arrays(), arrays()), UsageError,
            "must be one data set, not Splits (train, test): train on its .train; evaluate on its .test, or pass it as "
            "valid=",
        ),
    ],
    ids=["number", "array", "function", "splits"],
)  # fmt: skip
def test_fit_names_the_wrong_argument(wrong, error, message):
    calls = {
        "train": lambda: trainer().fit(wrong),
        "valid": lambda: trainer().fit(arrays(), valid=wrong),
        "data": lambda: trainer().evaluate(wrong),
    }
    for argument, call in calls.items():
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == f"{argument} {message}"


def test_fit_names_damaged_validation_data():
    x, y = arrays()
    message = r"^valid: the arrays have different numbers of samples: x has 20, targets has 19; "
    with pytest.raises(InputError, match=message):
        trainer().fit((x, y), valid=(x, y[1:]))


@in_one_item()
@pytest.mark.parametrize("make", [Endless, Samples, lambda: Samples(8)], ids=["map", "samples", "batches"])
def test_an_interrupted_epoch_goes_on(tmp_path, make):
    straight = weights(make())
    found = trainer()
    step, left = found._step, iter(range(4))

    def killed(*arguments):
        if next(left, None) is None:
            raise SystemExit
        return step(*arguments)

    found._step = killed
    with pytest.raises(SystemExit):
        found.fit(make(), epochs=2, batch_size=8, folder=tmp_path, checkpoint_every=1)
    last = trainer()
    last.resume(tmp_path)
    assert (last.epoch, last.batch) == (1, 1)
    last.fit(make(), epochs=2, batch_size=8)
    assert (last.net.params["fc_weight"].tobytes(), last.updates) == straight


def test_iterables_and_processes():
    with pytest.raises(UsageError, match=r"^Samples: 2 processes cannot share an iterable; pass data "):
        gk.data.as_dataset(Samples(), {"x": 2}).batches(8, ranks=2)


@pytest.mark.pytorch
def test_data_of_pytorch():
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(a) for a in arrays())
    data = torch.utils.data.TensorDataset(x, y)
    assert weights(data, data) == weights(arrays())
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    assert weights(loader, loader) == in_order()
