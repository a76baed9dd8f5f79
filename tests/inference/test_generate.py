"""gk.generate, compared with plain loops over ONNX Runtime."""

import dataclasses
import sys

import numpy as np
import pytest
from combinations import in_one_item
from decoders import cached_decoder, greedy, session, spread

import graphkit as gk
from graphkit.data import Vocabulary
from graphkit.errors import InputError, NotFinite, RuntimeFailure, UsageError
from graphkit.inference.position_table import position_table
from graphkit.onnx_io.compare import OnnxRuntimeModel

PROMPTS = ([3, 1, 4], [1], [5, 9, 2, 6, 5, 3], [8, 8])


@pytest.fixture(scope="module")
def net():
    return cached_decoder()


@pytest.fixture(scope="module")
def runtime(net):
    return session(net)


@pytest.fixture(scope="module")
def language_model():
    """A transformer of the zoo with a vocabulary of characters, without training."""
    vocabulary = Vocabulary.build(["abcdefgh \n"], level="char")
    net = spread(gk.models.build("transformer_lm", vocab=len(vocabulary), width=16, heads=2, layers=1, length=24))
    return gk.Model.from_graph(net.graph, net.params.entries(), meta={"vocabulary": vocabulary.to_json()})


def rerun(runtime, prompt, count, *, name="x", time_major=False):
    """Return the most probable tokens after a prompt, computed by ONNX Runtime from the whole sequence each time."""
    ids = list(prompt)
    for _ in range(count):
        x = np.array([ids])
        (logits,) = runtime.run(["logits"], {name: x.T if time_major else x})
        ids.append(int((logits[-1, 0] if time_major else logits[0, -1]).argmax()))
    return tuple(ids[len(prompt) :])


# --- greedy, compared with ONNX Runtime -------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS)
def test_cached_decoder_equals_onnxruntime(net, runtime, prompt):
    found = gk.generate(net, prompt, max_tokens=20)
    assert len(set(found.ids)) >= 3
    assert found.ids == greedy(runtime, prompt, 20)
    assert found[0].stopped == "max_tokens"
    assert found.notes == ()
    assert found.tokens == 20


def test_engine_onnxruntime_gives_the_same_tokens(net, runtime):
    assert gk.generate(net, PROMPTS[0], max_tokens=9, engine="onnxruntime").ids == greedy(runtime, PROMPTS[0], 9)


def test_sessions_of_onnxruntime_are_kept_with_the_model(monkeypatch):
    opened, export = [], []
    created, exported = OnnxRuntimeModel.__init__, gk.Model.to_onnx
    monkeypatch.setattr(OnnxRuntimeModel, "__init__", lambda *a, **o: (opened.append(a), created(*a, **o))[1])
    monkeypatch.setattr(gk.Model, "to_onnx", lambda *a, **o: (export.append(a), exported(*a, **o))[1])
    model = cached_decoder()

    def ids(**options):
        return gk.generate(model, [3, 1], max_tokens=4, engine="onnxruntime", **options).ids

    first = ids()
    assert [ids() for _ in range(3)] == [first] * 3
    assert (len(opened), len(export)) == (1, 1)
    ids(threads=1)
    assert len(opened) == 2
    name = next(name for name in model.params if model.params[name].ndim == 2)
    before = model.params[name].copy()
    model.params[name] = before[::-1]
    changed = ids()
    assert len(opened) == 3
    assert changed == gk.generate(model, [3, 1], max_tokens=4).ids
    model.params[name] = before
    assert ids() == first
    assert len(opened) == 4


@in_one_item()
@pytest.mark.parametrize(("mask", "positions"), [(True, True), (True, False), (False, True), (False, False)])
def test_uneven_prompts_equal_single_ones(mask, positions):
    model = cached_decoder(mask=mask, positions=positions)
    runtime = session(model)
    found = gk.generate(model, list(PROMPTS), max_tokens=12)
    assert [item.ids for item in found] == [greedy(runtime, prompt, 12) for prompt in PROMPTS]


def test_uneven_prompts_are_padded_only_if_positions_ignore_padding():
    tables = {
        (mask, positions): position_table(
            cached_decoder(mask=mask, positions=positions), "position_ids" if positions else None,
            "attention_mask" if mask else None,
        )
        for mask in (True, False) for positions in (True, False)
    }  # fmt: skip
    assert {key: table.rows for key, table in tables.items()} == dict.fromkeys(tables, 32)
    assert {key for key, table in tables.items() if table.counts_mask} == {(True, False)}


@pytest.mark.parametrize("names", [("past_{1}_{0}", "present_{1}_{0}"), ("past.{}.{}", "present.{}.{}")])
def test_other_names_of_caches(net, names):
    model = cached_decoder(past=names[0], present=names[1])
    assert gk.generate(model, [3, 1], max_tokens=9).ids == gk.generate(net, [3, 1], max_tokens=9).ids


def test_decoder_without_cache_equals_onnxruntime(language_model):
    runtime = session(language_model)
    found = gk.generate(language_model, [[4, 5], [6], [3, 3, 3]], max_tokens=8, tokenizer=None)
    for item in found:
        assert item.ids == rerun_without_special(runtime, item.prompt_ids, 8)
    assert len({token for item in found for token in item.ids}) >= 3
    assert "no cache" in found.notes[0]


def rerun_without_special(runtime, prompt, count):
    """As `rerun`, but padding and unknown tokens are not chosen."""
    ids = list(prompt)
    for _ in range(count):
        (logits,) = runtime.run(["logits"], {"x": np.array([ids])})
        ids.append(2 + int(logits[0, -1, 2:].argmax()))
    return tuple(ids[len(prompt) :])


def test_transformer_with_a_cache_equals_the_one_without(language_model):
    cached = gk.models.build(
        "transformer_lm", vocab=len(Vocabulary.from_json(language_model.meta["vocabulary"])), width=16, heads=2,
        layers=1, length=24, cache=True,
    )  # fmt: skip
    cached = gk.Model.from_graph(cached.graph, dict(language_model.params))
    runtime = session(language_model)
    found = gk.generate(cached, [[4, 5], [6], [3, 3, 3]], max_tokens=30)
    assert [len(item.ids) for item in found] == [23, 24, 22]  # 24 positions
    for item in found:
        assert item.ids == rerun(runtime, item.prompt_ids, len(item.ids))
    assert not any("no cache" in note for note in found.notes)
    assert gk.verify(cached).passed


def test_programs_are_kept_with_the_model(net, monkeypatch):
    made = []
    compiled = gk.Model.compile
    monkeypatch.setattr(gk.Model, "compile", lambda *a, **o: made.append(o) or compiled(*a, **o))
    model = gk.Model.from_graph(net.graph, dict(net.params))
    first = gk.generate(model, [3, 1], max_tokens=4).ids
    assert gk.generate(model, [3, 1], max_tokens=4).ids == first
    model.params["logits_bias"] = np.eye(23, dtype=np.float32)[11] * 1e4
    assert gk.generate(model, [3, 1], max_tokens=4).ids == (11, 11, 11, 11)
    assert len(made) == 1


def test_roles_are_found_once_for_each_graph(net, monkeypatch):
    module = sys.modules["graphkit.inference.generation.generate"]
    found, find = [], module.find_roles
    monkeypatch.setattr(module, "find_roles", lambda *a: found.append(a) or find(*a))
    model = gk.Model.from_graph(net.graph, dict(net.params))
    for _ in range(3):
        gk.generate(model, [3, 1], max_tokens=2)
    assert len(found) == 1
    gk.generate(model, [3, 1], max_tokens=2, output="logits")
    assert len(found) == 2


@pytest.mark.parametrize("stateful", [True, False])
def test_recurrent_model_equals_onnxruntime(stateful):
    model = spread(gk.models.build("lstm_lm", vocab=13, hidden=8, layers=2, stateful=stateful))
    runtime = session(runtime_model(model))
    found = gk.generate(model, [[3, 1], [7], [2, 5]], max_tokens=10)
    assert [item.ids for item in found] == [
        rerun(runtime, prompt, 10, time_major=True) for prompt in ([3, 1], [7], [2, 5])
    ]
    assert len({token for item in found for token in item.ids}) >= 3
    beams = gk.generate(model, [3, 1], max_tokens=4, beams=3)
    assert beams.ids == gk.generate(runtime_model(model), [3, 1], max_tokens=4, beams=3, engine="onnxruntime").ids


def runtime_model(model):
    """Return the model without a state, of the same parameters."""
    whole = gk.models.build("lstm_lm", vocab=13, hidden=8, layers=2)
    return gk.Model.from_graph(whole.graph, dict(model.params))


def test_prompt_is_fed_token_by_token_if_the_length_is_one(net, runtime):
    graph = net.graph
    fixed = gk.load(_with_fixed_length(net, 1))
    assert fixed.input_types["input_ids"].shape[1] == 1
    assert graph is not fixed.graph
    assert gk.generate(fixed, [3, 1, 4], max_tokens=9).ids == greedy(runtime, [3, 1, 4], 9)


def _with_fixed_length(model, length, *, batch=None):
    """Return the ONNX file of a model with a fixed number of tokens per run, and perhaps a fixed batch."""
    file = model.to_onnx()
    for value in file.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "sequence" and length is not None:
                dim.dim_value = length
            if dim.dim_param == "batch" and batch is not None:
                dim.dim_value = batch
    return file.SerializeToString()


@pytest.mark.parametrize("batch", [1, 3])
def test_fixed_batch_runs_prompts_one_by_one(net, runtime, batch):
    fixed = gk.load(_with_fixed_length(net, None, batch=batch))
    found = gk.generate(fixed, list(PROMPTS), max_tokens=6)
    assert [item.ids for item in found] == [greedy(runtime, prompt, 6) for prompt in PROMPTS]
    beams = gk.generate(fixed, [3, 1], max_tokens=4, beams=3)
    assert beams.ids == gk.generate(net, [3, 1], max_tokens=4, beams=3).ids


def test_fixed_length_without_cache_is_padded(language_model):
    file = language_model.to_onnx()
    for dim in file.graph.input[0].type.tensor_type.shape.dim:
        if dim.dim_param == "T":
            dim.dim_value = 12
    fixed = gk.load(file.SerializeToString())
    found = gk.generate(fixed, [4, 5], max_tokens=50)
    assert found.ids == gk.generate(language_model, [4, 5], max_tokens=11).ids
    assert found[0].stopped == "positions"


def test_half_precision_cache_and_logits(net):
    x = gk.input("input_ids", ["N", "T"], "int64")
    state = gk.input("state", ["N", 7], "float16")
    rng = np.random.default_rng(0)
    table = gk.parameter("table", (9, 7), {"type": "normal", "std": 1.0})
    first = gk.gather(gk.cast(table, to="float16"), gk.reshape(x, np.array([-1])), axis=0)
    after = gk.add(gk.mul(state, np.float16(0.5)), gk.reshape(first, np.array([-1, 7])))
    weight = rng.standard_normal((7, 9)).astype(np.float16)
    model = gk.Model({"logits": gk.mat_mul(after, gk.constant(weight)), "last_state": after}, seed=1)
    found = gk.generate(model, [3], max_tokens=6)
    kept, ids = np.zeros((1, 7), np.float16), [3]
    for _ in range(6):
        kept = (kept * np.float16(0.5) + model.params["table"][ids[-1]].astype(np.float16)).astype(np.float16)
        ids.append(int((kept.astype(np.float32) @ weight.astype(np.float32)).argmax()))
    assert found.ids == tuple(ids[1:])


def test_decoder_with_mask_and_positions_but_no_cache(net, runtime):
    """The past is given as empty arrays, so the model has no cache, and shorter prompts are padded."""
    empty = {name: np.zeros((1, 2, 0, 8), np.float32) for name in net.inputs if name.startswith("past")}
    found = gk.generate(net, list(PROMPTS), max_tokens=7, inputs=empty)
    assert "no cache" in found.notes[0]
    assert [item.ids for item in found] == [greedy(runtime, prompt, 7) for prompt in PROMPTS]


def test_inputs_of_merged_exports():
    """The flag is False in the first run, one position is scored, and the keys of the encoder stay the first ones."""
    ids, kinds = gk.input("input_ids", ["N", "T"], "int64"), gk.input("token_type_ids", ["N", "T"], "int64")
    places, kept = gk.input("cache_position", ["T"], "int64"), gk.input("num_logits_to_keep", [], "int64")
    flag = gk.input("use_cache_branch", [1], "bool")
    past = gk.input("past_key_values.0.encoder.key", ["N", "S", 11])
    rng = np.random.default_rng(0)
    first = rng.standard_normal((1, 3, 11)).astype(np.float32) / 3
    keys = gk.where(flag, np.float32(0), gk.expand(gk.constant(first), gk.concat(gk.shape(ids)[:1], [1, 1], axis=0)))
    used = gk.add(gk.reduce_sum(past, np.array([1])), gk.mul(gk.reduce_sum(keys, np.array([1])), np.float32(0.5)))
    h = gk.add(gk.nn.embedding(ids, 11, 11, name="token"), gk.nn.embedding(places, 40, 11, name="place"))
    h = gk.add(gk.add(h, gk.cast(gk.unsqueeze(kinds, np.array([2])), to="float32")), used)
    last = gk.slice(h, gk.neg(gk.unsqueeze(kept, np.array([0]))), np.array([99]), np.array([1]))
    model = gk.Model({"logits": last, "present.0.encoder.key": keys}, seed=0)
    params = {n: rng.standard_normal(a.shape).astype(a.dtype) for n, a in model.params.items()}
    model = gk.Model.from_graph(model.graph, params)
    found = gk.generate(model, [[3, 1, 4], [2]], max_tokens=8)
    total = first.sum(axis=1)[0]
    for item in found:
        ids, written = list(item.prompt_ids), []
        for step in range(8):
            scores = params["token_weight"][ids[-1]] + params["place_weight"][len(ids) - 1]
            written.append(int((scores + total * (1 if step else 0.5)).argmax()))
            ids.append(written[-1])
        assert item.ids == tuple(written)
    assert len({token for item in found for token in item.ids}) >= 3


# --- results ----------------------------------------------------------------------------------------------


def test_results_of_text(language_model):
    pieces = []
    found = gk.generate(language_model, "abc", max_tokens=7, on_token=lambda t: pieces.append(t.text))
    assert found.text == "".join(pieces)
    vocabulary = Vocabulary.from_json(language_model.meta["vocabulary"])
    assert found.text == vocabulary.decode(found.ids)
    assert found[0].prompt_ids == tuple(vocabulary.encode("abc"))


def test_stop_text_and_end_token(language_model):
    whole = gk.generate(language_model, "abc", max_tokens=9, temperature=1, seed=1).text
    stop = whole[4:6]
    cut = gk.generate(language_model, "abc", max_tokens=9, temperature=1, seed=1, stop=stop)
    assert (cut.text, cut[0].stopped) == (whole[: whole.index(stop)], "stop")
    end = gk.generate(language_model, "abc", max_tokens=9, temperature=1, seed=1, end=whole[3])
    assert end[0].stopped == "end"
    assert end.text == whole[: whole.index(whole[3]) + 1]
    number = Vocabulary.from_json(language_model.meta["vocabulary"]).token_number(whole[3])
    assert gk.generate(language_model, "abc", max_tokens=9, temperature=1, seed=1, end=number).ids == end.ids


def test_probabilities_are_those_of_the_model(net, runtime):
    found = gk.generate(net, [3, 1], max_tokens=5, temperature=0.7, top_k=4, probabilities=True)
    ids, feeds = np.array([[3, 1, *found.ids[:-1]]]), {}
    for item in runtime.get_inputs():
        if item.name.startswith("past"):
            feeds[item.name] = np.zeros((1, 2, 0, 8), np.float32)
    feeds |= {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(6)[None]}
    (logits,) = runtime.run(["logits"], feeds)
    powers = np.exp(logits[0, 1:].astype(np.float64))
    shares = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[0].probabilities, shares[np.arange(5), found.ids], rtol=1e-4)
    assert gk.generate(net, [3, 1], max_tokens=1)[0].probabilities is None


def test_seed_fixes_the_tokens_and_batches_do_not_change_them(net):
    options = {"max_tokens": 10, "temperature": 1.0}
    first = gk.generate(net, list(PROMPTS), **options, seed=3)
    again = gk.generate(net, list(PROMPTS), **options, seed=3, batch_size=1)
    other = gk.generate(net, list(PROMPTS), **options, seed=4)
    assert [item.ids for item in first] == [item.ids for item in again]
    assert [item.ids for item in first] != [item.ids for item in other]


def test_no_tokens(net):
    found = gk.generate(net, [[3], [4, 5]], max_tokens=0)
    assert [(item.ids, item.text, item.stopped) for item in found] == [((), None, "max_tokens")] * 2
    assert found.per_second == 0.0
    assert gk.generate(net, [3], max_tokens=0, beams=2).ids == ()
    with pytest.raises(UsageError, match="2 prompts"):
        _ = found.ids


def test_generation_stops_at_the_last_position(net, runtime):
    found = gk.generate(net, [[1] * 30, [2, 3]], max_tokens=8)
    # 32 positions: the last token is not fed.
    assert [(len(item.ids), item.stopped) for item in found] == [(3, "positions"), (8, "max_tokens")]
    assert found[0].ids == greedy(runtime, [1] * 30, 3)
    assert "32 tokens" in found.notes[-1]
    lower = gk.generate(net, [2, 3], max_tokens=8, max_positions=4)
    assert (len(lower.ids), lower[0].stopped) == (3, "positions")
    with pytest.raises(InputError, match="33 tokens, but the model has 32 positions"):
        gk.generate(net, [1] * 33)


def test_vocabulary_smaller_than_the_scores(net):
    vocabulary = Vocabulary(["<pad>", "<unk>", *"abcdefgh"], "char")
    found = gk.generate(net, "abc", max_tokens=20, tokenizer=vocabulary, temperature=1)
    assert 2 <= min(found.ids) <= max(found.ids) < len(vocabulary)
    assert "scores 23 tokens and the vocabulary has 10" in found.notes[0]
    with pytest.raises(InputError, match="contains the token 10, but the vocabulary has 10 tokens"):
        gk.generate(net, [10], tokenizer=vocabulary)


def test_further_inputs_are_fed_in_each_step():
    x = gk.input("input_ids", ["N", "T"], "int64")
    context = gk.input("context", ["N", 5])
    h = gk.add(gk.nn.embedding(x, 9, 5, name="token"), gk.unsqueeze(context, np.array([1])))
    model = gk.Model({"logits": gk.nn.linear(h, 9, name="logits")}, seed=0)
    rows = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32) * 30
    found = gk.generate(model, [[1], [1, 2]], max_tokens=5, inputs={"context": rows})
    for item, row in zip(found, rows, strict=True):
        assert item.ids == gk.generate(model, item.prompt_ids, max_tokens=5, inputs={"context": row[None]}).ids
        h = model.params["token_weight"][item.prompt_ids[-1]] + row
        scores = h @ model.params["logits_weight"].T + model.params["logits_bias"]
        assert item.ids[0] == scores.argmax()
    assert found[0].ids != found[1].ids
    with pytest.raises(UsageError, match="size 1 or 2"):
        gk.generate(model, [[1], [1, 2]], inputs={"context": rows[[0, 0, 1]]})
    with pytest.raises(UsageError, match="input context"):
        gk.generate(model, [1])


# --- errors -----------------------------------------------------------------------------------------------


def _two_named(first, second, *, outputs):
    x = gk.input("input_ids", ["N", "T"], "int64")
    a, b = gk.input(first, ["N", 4]), gk.input(second, ["N", 4])
    h = gk.add(gk.nn.embedding(x, 9, 4, name="token"), gk.unsqueeze(gk.add(a, b), np.array([1])))
    return gk.Model({"logits": gk.nn.linear(h, 9, name="fc"), **{n: gk.mul(a, np.float32(2)) for n in outputs}})


@in_one_item()
@pytest.mark.parametrize(
    ("first", "second", "outputs", "message"),
    [
        ("h", "c", ["last_h"], "input c float32"),
        ("h", "c", ["last_h", "next_h", "last_c"], "input 'h' and 'last_h' or 'next_h'"),
        ("past_h", "past_key_values_h", ["present_h"], "input past_key_values_h"),
        ("h", "prev_h", ["next_h"], "ambiguous which outputs.*'h' and 'next_h'.*'prev_h' and 'next_h'"),
        ("past_h", "past_c", ["present_h", "present_c", "present_d"], "output present_d"),
        ("past_h", "past_c", ["state1", "state2"], "input past_h.*input past_c"),
    ],
)
def test_pairs_without_one_meaning_are_errors(first, second, outputs, message):
    with pytest.raises(UsageError, match=message):
        gk.generate(_two_named(first, second, outputs=outputs), [1])


def test_given_pairs_replace_names():
    model = _two_named("past_h", "past_c", outputs=["state1", "state2"])
    named = _two_named("past_h", "past_c", outputs=["present_h", "present_c"])
    found = gk.generate(model, [1], max_tokens=6, carry={"past_h": "state1", "past_c": "state2"})
    assert found.ids == gk.generate(named, [1], max_tokens=6).ids
    with pytest.raises(UsageError, match="no output 'state3'"):
        gk.generate(model, [1], carry={"past_h": "state3"})
    with pytest.raises(UsageError, match="no input 'past'"):
        gk.generate(model, [1], carry={"past": "state1"})


def test_outputs_without_one_meaning_are_errors(net):
    two = cached_decoder(extra=lambda h: {"other": h})
    assert gk.generate(two, [3], max_tokens=3).ids == gk.generate(net, [3], max_tokens=3).ids
    renamed = net.select(*[name for name in net.outputs if name != "logits"], "norm_0")
    assert "output 'norm_0'" in gk.generate(renamed, [3], max_tokens=2).notes[0]
    more = net.select(*[name for name in net.outputs if name != "logits"], "norm_0", "norm1b_0")
    with pytest.raises(UsageError, match="2 could be: norm_0, norm1b_0"):
        gk.generate(more, [3])
    assert gk.generate(more, [3], max_tokens=2, output="norm_0").ids
    hidden = cached_decoder(extra=lambda h: {"last_hidden_state": h})
    with pytest.raises(UsageError, match="scores the next token, but there is none"):
        gk.generate(hidden.select(*[name for name in hidden.outputs if name != "logits"]), [3])
    with pytest.raises(UsageError, match="no output 'score'"):
        gk.generate(more, [3], output="score")


def test_models_that_are_no_decoder():
    x = gk.input("x", ["N", 4])
    with pytest.raises(UsageError, match=r"needs one input of numbers of tokens.*there is none"):
        gk.generate(gk.Model({"y": gk.relu(x)}), [1])
    with pytest.raises(UsageError, match="2 could be: source, previous"):
        gk.generate(gk.models.build("seq2seq", vocab=9, width=4, hidden=4), [1])


def test_encoder_and_decoder_with_given_source():
    model = spread(gk.models.build("seq2seq", vocab=9, width=4, hidden=5))
    runtime = session(model)
    source, lengths = np.array([[3, 4, 5]]), np.array([3])
    ids = [1]
    for _ in range(5):
        (logits,) = runtime.run(None, {"source": source, "lengths": lengths, "previous": np.array([ids])})
        ids.append(int(logits[0, -1].argmax()))
    found = gk.generate(model, [1], max_tokens=5, inputs={"source": source, "lengths": lengths})
    assert found.ids == tuple(ids[1:])


def test_not_finite_scores_name_the_step(net):
    x = gk.input("input_ids", ["N", "T"], "int64")
    scores = gk.nn.embedding(x, 4, 4, name="token")
    model = gk.Model({"logits": scores}, seed=0)
    table = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [np.nan, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    model.params["token_weight"] = table
    with pytest.raises(NotFinite, match="scores of token 3 after prompt 1 contain NaN"):
        gk.generate(model, [[3], [0]], max_tokens=9)
    model.params["token_weight"] = np.where(np.isnan(table), np.inf, table)
    with pytest.raises(NotFinite, match="token 3 after prompt 0 contain infinity"):
        gk.generate(model, [0], max_tokens=9, beams=2)
    model.params["token_weight"] = np.where(np.isnan(table), -np.inf, table)
    assert len(gk.generate(model, [0], max_tokens=9, temperature=1).ids) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, "max_tokens=-1"),
        ({"beams": 0}, "beams=0"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_k": 0}, "top_k must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"temperature": 0.0, "top_k": 3}, "leave out top_k"),
        ({"beams": 2, "top_k": 3}, "draws no tokens"),
        ({"beams": 2, "on_token": print}, "leave out on_token"),
        ({"seed": -1}, "seed=-1"),
        ({"length_penalty": float("inf")}, "length_penalty=inf"),
        ({"length_penalty": 1.0}, "also give beams"),
        ({"beams": 2, "probabilities": True}, "leave out probabilities"),
        ({"stop": "x"}, "need a vocabulary"),
        ({"end": "</s>"}, "no token '</s>'"),
        ({"engine": "tensorflow"}, "engine must be"),
        ({"inputs": {"y": np.ones(1)}}, "no input 'y'"),
        ({"max_token": 3}, "did you mean 'max_tokens'"),
    ],
)
def test_wrong_options(net, options, message):
    with pytest.raises(UsageError, match=message):
        gk.generate(net, [1], **options)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 0 is empty"),
        ([[1], []], "prompt 1 is empty"),
        (np.zeros((0, 3), np.int64), "there is no prompt"),
        ("abc", "no vocabulary"),
        ([-1], "numbers begin at 0"),
        ([[1.5]], "expected a text, or integers"),
        (7, "a prompt is a text or numbers of tokens, not 7"),
    ],
)
def test_wrong_prompts(net, prompt, message):
    with pytest.raises(UsageError, match=message):
        gk.generate(net, prompt)


def test_token_outside_of_the_table_names_node_and_length(net):
    with pytest.raises(RuntimeFailure, match=r"at a length of 2 tokens: token: Gather.*index 25"):
        gk.generate(net, [1, 25])


def test_scores_of_all_tokens_in_one_axis_are_an_error():
    x = gk.input("input_ids", ["N", "T"], "int64")
    flat = gk.reshape(gk.nn.embedding(x, 5, 5, name="token"), np.array([-1, 5]))
    with pytest.raises(UsageError, match=r"output 'logits' has the shape \[2, 5\]"):
        gk.generate(gk.Model({"logits": flat}), [1, 2])


def test_only_tokens_without_text_have_a_score():
    x = gk.input("input_ids", ["N", "T"], "int64")
    model = gk.Model({"logits": gk.nn.embedding(x, 3, 3, name="token")})
    model.params["token_weight"] = np.array([[1, 1, -np.inf]] * 3, np.float32)
    with pytest.raises(NotFinite, match="only minus infinity"):
        gk.generate(model, "a", tokenizer=Vocabulary(["<pad>", "<unk>", "a"], "char"))


def test_states_of_a_fixed_size_prevent_padding():
    """Padding would change the state, so prompts of different lengths run apart."""
    x, mask = gk.input("input_ids", ["N", "T"], "int64"), gk.input("attention_mask", ["N", "P"], "int64")
    places, state = gk.input("position_ids", ["N", "T"], "int64"), gk.input("state", ["N", 9])
    h = gk.nn.embedding(x, 9, 9, name="token")
    total = gk.add(gk.mul(state, np.float32(0.5)), gk.reduce_sum(h, np.array([1]), keepdims=False))
    zero = gk.mul(gk.cast(gk.add(gk.reduce_sum(mask), gk.reduce_sum(places)), to="float32"), np.float32(0))
    model = spread(gk.Model({"logits": gk.add(total, zero), "last_state": total}))
    found = gk.generate(model, [[1, 2, 3], [4]], max_tokens=6)
    assert [item.ids for item in found] == [gk.generate(model, prompt, max_tokens=6).ids for prompt in ([1, 2, 3], [4])]
    assert len({token for item in found for token in item.ids}) >= 3


def test_model_with_separate_roles_is_compiled_again(net):
    model = gk.Model.from_graph(net.graph, dict(net.params))
    before = gk.generate(model, [3, 1], max_tokens=4).ids
    other = cached_decoder(seed=5)
    model._adopt(other.graph, dict(other.params), 0)  # as Model.separate_roles does
    assert gk.generate(model, [3, 1], max_tokens=4).ids == gk.generate(other, [3, 1], max_tokens=4).ids != before


def test_empty_text_is_an_error(language_model):
    with pytest.raises(InputError, match="prompt 0 is empty"):
        gk.generate(language_model, "")
    with pytest.raises(UsageError, match=r"stop text .* is empty"):
        gk.generate(language_model, "a", stop=["b", ""])


def test_results_become_json(net):
    found = gk.generate(net, [3], max_tokens=2, beams=2)
    record = dataclasses.asdict(found[0])
    assert record["hypotheses"][0]["ids"] == found.ids
