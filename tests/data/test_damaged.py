"""Samples that cannot be read: an end, or the next whole one in their place."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import graphkit as gk
from graphkit.data import LazyDataset
from graphkit.errors import DamagedSample, GraphkitWarning, InputError
from graphkit.train import checkpoint

BAD = {3, 4, 11}


class Rusty(LazyDataset):
    """Sample n is n, a random number, and n % 3."""

    augments = True

    def __init__(self, count=12, bad=BAD, name="rusty"):
        super().__init__(count, name=name)
        self.bad = bad
        self.asked = []

    def sample(self, number, draw):
        self.asked.append(number)
        if number in self.bad:
            raise DamagedSample(f"photos/{number}.png: the file ends within the image")
        noise = 0.0 if draw is None else draw.random()
        return np.array([number, noise, number % 3, number % 2, 1, 0], np.float32), number % 3


def whole(dataset, **options):
    """Numbers and random numbers of an epoch, in its order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphkitWarning)
        found = list(dataset.batches(4, **options))
    return np.concatenate([b.inputs[:, :2] for b in found]), [b.replaced for b in found]


def test_one_ends_an_epoch():
    found = Rusty()
    batches = iter(found.batches(3, shuffle=False))
    assert next(batches).size == 3
    with pytest.raises(DamagedSample, match=r"photos/3.png: the file ends within"):
        next(batches)
    assert isinstance(DamagedSample("x"), InputError)


def test_the_next_whole_one_takes_its_place():
    found = Rusty().configured(on_damaged="skip")
    rows, replaced = whole(found, shuffle=False)
    assert rows[:, 0].tolist() == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9, 10, 0]
    assert replaced == [1, 1, 1]
    assert found.damaged.keys() == BAD
    assert found.damaged[11] == "photos/11.png: the file ends within the image"
    # In training, with the random numbers of the sample that is left out.
    rows, replaced = whole(found, seed=4)
    order = found.order(4, 0, 4)
    stands_for = {3: 5, 4: 5, 11: 0}
    assert rows[:, 0].tolist() == [stands_for.get(n, n) for n in order]
    assert len(set(rows[:, 1])) == 12
    sound, _ = whole(Rusty(bad=()), seed=4)
    assert rows[:, 1].tolist() == sound[:, 1].tolist()
    assert sum(replaced) == 3


def test_targets_that_are_known_go_with_the_sample():
    found = Rusty(6, {2})
    found.sample = lambda number, draw: (Rusty.sample(found, number, draw)[0], None)
    found.targets = np.arange(6) * 10
    with pytest.warns(GraphkitWarning, match="sample 2 is replaced by the next readable one"):
        _, targets = found.configured(on_damaged="skip").take(slice(None))
    assert targets.tolist() == [0, 10, 30, 30, 40, 50]


def test_ranks_and_parts_agree():
    found = Rusty().configured(on_damaged="skip")
    together, _ = whole(found, seed=1)
    parts = [whole(found, seed=1, rank=r, ranks=2) for r in range(2)]
    assert {*map(tuple, together.tolist())} == {tuple(row) for rows, _ in parts for row in rows.tolist()}
    assert sum(sum(replaced) for _, replaced in parts) == 3
    assert np.array_equal(whole(found, seed=1, start=2)[0], together[8:])
    train, test = found.split(0.25, stratify=False)
    whole(train)
    whole(test)
    assert train.damaged is test.damaged
    assert train.damaged.keys() == BAD


def test_each_is_named_once():
    found = Rusty().configured(on_damaged="skip")
    with pytest.warns(GraphkitWarning) as caught:
        _three_epochs(found)
    assert sorted(str(w.message) for w in caught) == [
        f"rusty: sample {n} is replaced by the next readable one: photos/{n}.png: the file ends within the image"
        for n in (11, 3, 4)
    ]


def _three_epochs(found):
    for _ in range(3):
        list(found.batches(4))


def test_no_whole_sample():
    found = Rusty(5, range(5)).configured(on_damaged="skip")
    with pytest.raises(
        InputError, match=r"rusty: 5 samples in a row are damaged, from sample 0; the last: photos/4.png"
    ):
        found.take(slice(0, 1))
    many = Rusty(5000, range(5000)).configured(on_damaged="skip")
    with pytest.raises(InputError, match="1000 samples in a row are damaged"):
        _ = many.shape
    assert len(many.asked) == 1000


def trainer(store=None):
    x = gk.input("x", ["N", 6])
    net = gk.Model({"logits": gk.nn.linear(x, 3, name="fc")}, seed=0)
    return gk.Trainer(net, seed=3, threads=1, kvstore=store)


@pytest.mark.filterwarnings("ignore::graphkit.errors.GraphkitWarning")
def test_the_log_counts_them(tmp_path):
    found = Rusty().configured(on_damaged="skip")
    straight = trainer()
    history = straight.fit(found, found, epochs=2, batch_size=4, folder=tmp_path / "straight", metrics=["accuracy"])
    assert [record["data.damaged"] for record in history] == [3, 3]
    assert '"data.damaged": 3' in (tmp_path / "straight" / "log.jsonl").read_text()
    # Interrupted in the middle of the second epoch, and gone on with.
    stopped, left = trainer(), iter(range(4))
    step = stopped._step

    def killed(*arguments):
        if next(left, None) is None:
            raise SystemExit
        return step(*arguments)

    stopped._step = killed
    folder = tmp_path / "stopped"
    with pytest.raises(SystemExit):
        stopped.fit(found, found, epochs=2, batch_size=4, folder=folder, checkpoint_every=1, metrics=["accuracy"])
    again = trainer()
    again.resume(folder)
    assert (again.epoch, again.batch) == (1, 1)
    rest = again.fit(found, found, epochs=2, batch_size=4, folder=folder, metrics=["accuracy"])
    assert rest == history[1:]
    assert again.net.params["fc_weight"].tobytes() == straight.net.params["fc_weight"].tobytes()
    assert checkpoint.load(folder).position["epoch"] == 2
    assert "data.damaged" not in trainer().fit(Rusty(bad=()), batch_size=4)[0]


@pytest.mark.filterwarnings("ignore::graphkit.errors.GraphkitWarning")
def test_processes_count_together(on_ranks):
    def work(store):
        return trainer(store).fit(Rusty().configured(on_damaged="skip"), epochs=1, batch_size=2)[0]["data.damaged"]

    assert on_ranks(work, 2) == [3, 3]
