"""`validation_split` of `Trainer.fit`: which samples are held out."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, UsageError


class Seen(gk.data.LazyDataset):
    """Samples whose input is their number."""

    def __init__(self, count):
        super().__init__(count, np.arange(count) % 2, name="seen")

    def sample(self, number, draw):
        return np.full(2, number, np.float32), None


def trainer(seed=3, **options):
    net = gk.Model({"logits": gk.nn.linear(gk.input("x", ["N", 2]), 2, name="fc")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=gk.optim.SGD(1e-4), seed=seed, threads=1, **options)


def parts(made, data, **options):
    """The sample numbers of training and validation, from the batches of a `fit`."""
    trained, read = [], []
    step, prepared = made._step, made._prepared

    def numbers(inputs):
        return np.asarray(inputs["x"])[:, 0].astype(int).tolist()

    def reading(batch):
        found = prepared(batch)
        read.extend(numbers(found.inputs))
        return found

    def training(inputs, targets, size=None):
        trained.extend(numbers(inputs))
        return step(inputs, targets, size)

    made._prepared, made._step = reading, training
    history = made.fit(data, batch_size=8, prefetch=0, **options)
    return sorted(trained), sorted(set(read) - set(trained)), history


@pytest.mark.parametrize("lazy", [True, pytest.param(False, marks=pytest.mark.full)])
def test_parts_are_disjoint_and_chosen_by_seed(lazy):
    numbers = np.repeat(np.arange(50, dtype=np.float32)[:, None], 2, 1)
    data = Seen(50) if lazy else gk.data.Dataset(numbers, np.arange(50) % 2)
    train, valid, history = parts(trainer(), data, validation_split=0.2)
    expected = gk.data.Dataset(numbers, np.arange(50) % 2).split(0.2, seed=3)
    assert valid == expected.test.inputs[:, 0].astype(int).tolist()
    assert sorted([*train, *valid]) == list(range(50))
    assert len(valid) == 10
    assert "valid_loss" in history[0]
    assert parts(trainer(), data, validation_split=0.2)[:2] == (train, valid)
    assert parts(trainer(seed=4), data, validation_split=0.2)[1] != valid


def test_pairs_lists_and_tables_can_be_split(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32), np.arange(40) % 2
    assert trainer().fit((x, y), validation_split=0.25)[0]["valid_loss"] > 0
    assert trainer().fit([(a, b) for a, b in zip(x, y, strict=True)], validation_split=0.25)[0]["valid_loss"] > 0
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *(f"{a},{b},{c}" for (a, b), c in zip(x, y, strict=True))]))
    assert trainer().fit(gk.data.read(tmp_path / "t.csv"), validation_split=0.25)[0]["valid_loss"] > 0


def test_resume_holds_out_the_same_samples(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32), np.arange(40) % 2
    options = {"batch_size": 8, "validation_split": 0.25}
    whole = trainer()
    straight = whole.fit((x, y), epochs=2, **options)
    trainer().fit((x, y), max_steps=2, folder=tmp_path, **options)
    last = trainer(seed=99)  # `resume` restores the seed
    last.resume(tmp_path)
    with pytest.raises(UsageError, match=r"validation_split=0.5: the run .* has validation_split=0.25"):
        last.fit((x, y), epochs=2, batch_size=8, validation_split=0.5)
    with pytest.raises(UsageError, match=r"validation_split=None: the run .* has validation_split=0.25"):
        last.fit((x, y), epochs=2, batch_size=8)
    assert last.fit((x, y), epochs=2, **options) == straight
    assert all(whole.net.params[n].tobytes() == last.net.params[n].tobytes() for n in whole.net.params)


def test_ranks_hold_out_the_same_samples(on_ranks):
    x, y = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32), np.arange(40) % 2

    def fitted(store):
        return trainer(kvstore=store).fit((x, y), batch_size=4, validation_split=0.25)

    first, second = on_ranks(fitted)
    alone = trainer().fit((x, y), batch_size=8, validation_split=0.25)
    assert first == second
    assert first[0]["valid_loss"] == pytest.approx(alone[0]["valid_loss"], rel=1e-5)


class Doubled(gk.data.Dataset):
    """Changes samples when they are read."""

    def take(self, index):
        inputs, targets = super().take(index)
        return inputs * 2, targets


@in_one_item()
@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (lambda x, y: (x, y), {"validation_split": 0.01}, InputError, "one part would be empty"),
        (lambda x, y: (x[:1], y[:1]), {"validation_split": 0.5}, InputError, "one part would be empty"),
        (lambda x, y: (x, y), {"validation_split": 1.0}, UsageError, "validation_split"),
        (lambda x, y: (x, y), {"validation_split": float("nan")}, UsageError, "validation_split"),
        (lambda x, y: (x, y), {"validation_split": 0.2, "valid": True}, UsageError, "not with both"),
        (lambda x, y: iter([(x, y)]), {"validation_split": 0.2}, UsageError, "is an iterable"),
        (Doubled, {"validation_split": 0.2}, UsageError, "Doubled does not define `subset`"),
    ],
)
def test_impossible_splits_are_errors(data, options, error, message):
    x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
    if "valid" in options:
        options = {**options, "valid": (x, y)}
    made = trainer()
    with pytest.raises(error, match=message):
        made.fit(data(x, y), **options)
    assert made.updates == 0
