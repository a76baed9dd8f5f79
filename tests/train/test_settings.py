"""Groups of settings have the fields and effects of the keywords of a Trainer."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.train import settings

GROUPS = {
    "numerics": gk.settings.Numerics(precision="bf16", deterministic=True, on_nonfinite="skip"),
    "memory": gk.settings.Memory(accumulate=2),
    "regularisation": gk.settings.Regularisation(clip_norm=0.1, ema=0.5, mixup=0.4),
}
KEYWORDS = {
    "numerics": {"precision": "bf16", "deterministic": True, "on_nonfinite": "skip"},
    "memory": {"accumulate": 2},
    "regularisation": {"clip_norm": 0.1, "ema": 0.5, "mixup": 0.4},
}


def network():
    x = gk.input("x", ["N", 4])
    return gk.Model(gk.nn.linear(gk.relu(gk.nn.linear(x, 8, name="a")), 3, name="b"), seed=1)


def trained(**options):
    trainer = gk.Trainer(network(), optimizer=gk.optim.SGD(0.1), seed=1, threads=1, **options)
    rng = np.random.default_rng(0)
    for _ in range(4):
        trainer.step(rng.random((8, 4), np.float32), rng.integers(0, 3, 8))
    return trainer


@in_one_item()
@pytest.mark.parametrize("names", [["numerics"], ["memory"], ["regularisation"], list(GROUPS)], ids=" ".join)
def test_groups_train_as_their_keywords(names):
    plain = trained()
    grouped = trained(**{name: GROUPS[name] for name in names})
    keywords = trained(**{key: value for name in names for key, value in KEYWORDS[name].items()})
    assert grouped.updates == keywords.updates
    for name, array in keywords.net.params.items():
        np.testing.assert_array_equal(grouped.net.params[name], array)
        assert (array != plain.net.params[name]).any()


def test_parallel_group_has_the_store():
    store = gk.kvstore.create("local")
    assert gk.Trainer(network(), parallel=gk.settings.Parallel(kvstore=store)).kvstore is store


def test_settings_equal_keywords_and_their_defaults():
    import inspect
    from dataclasses import fields

    parameters = inspect.signature(gk.Trainer.__init__).parameters
    for name in set(settings.__all__) - {"Lora"}:  # whose fields have no keywords
        for field in fields(getattr(settings, name)):
            assert parameters[field.name].default == field.default, field.name


def test_numbers_of_numpy_become_those_of_python(tmp_path):
    given = {"accumulate": np.int64(2), "deterministic": np.True_, "clip_norm": np.float32(1.0), "ema": np.float32(0.5)}
    memory = gk.settings.Memory(accumulate=given["accumulate"])
    assert type(memory.accumulate) is int
    assert type(gk.settings.Parallel(micro_batches=np.int32(1)).micro_batches) is int
    assert type(gk.settings.Regularisation(clip_norm=given["clip_norm"]).clip_norm) is float
    assert type(gk.settings.Numerics(deterministic=given["deterministic"]).deterministic) is bool
    assert gk.optim.EMA(given["ema"]).describe() == {"decay": 0.5, "warmup": False}
    data = np.zeros((4, 4), np.float32), np.zeros(4, np.int64)
    gk.Trainer(network(), **given).fit(data, batch_size=2, folder=tmp_path, progress=False)
    restored = gk.Trainer(network(), accumulate=2, deterministic=True, clip_norm=1.0, ema=0.5)
    restored.resume(tmp_path)
    assert restored.updates == 1


@in_one_item()
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": GROUPS["memory"], "accumulate": 3}, "accumulate= is also a setting of memory=: set it in only one"),
        ({"numerics": GROUPS["memory"]}, "numerics must be a gk.settings.Numerics, not Memory"),
        ({"memory": {"accumulate": 2}}, "memory must be a gk.settings.Memory, not {'accumulate': 2}"),
    ],
)
def test_wrong_groups_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        gk.Trainer(network(), **options)


@in_one_item()
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gk.settings.Memory(accumulate=0), "accumulate must be an integer of at least 1"),
        (lambda: gk.settings.Memory(recompute=-1), "recompute must be"),
        (lambda: gk.settings.Numerics(precision="f99"), "precision 'f99': expected one of 'f32', 'bf16'"),
        (lambda: gk.settings.Numerics(on_nonfinite="stop"), "on_nonfinite"),
        (lambda: gk.settings.Regularisation(clip_norm=0.0), "clip_norm must be a finite number above 0"),
        (lambda: gk.settings.Regularisation(ema=2.0), "decay"),
        (lambda: gk.settings.Regularisation(batch_norm="off"), "batch_norm must be 'train' or 'frozen'"),
        (lambda: gk.settings.Parallel(micro_batches=0), "micro_batches"),
        (lambda: gk.settings.Memory(acumulate=2), "did you mean 'accumulate'"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
