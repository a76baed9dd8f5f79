"""Small decoders with a cache, with the names of Hugging Face's exports, and a loop over ONNX Runtime."""

import numpy as np
import onnxruntime

import graphkit as gk


def cached_decoder(
    vocab=23, width=16, heads=2, layers=2, length=32, *, mask=True, positions=True, seed=0, scale=1.0,
    past="past_key_values.{}.{}", present="present.{}.{}", extra=None,
):  # fmt: skip
    """Return a causal decoder with keys and values of earlier tokens as inputs and outputs.

    mask, positions: whether it has an attention mask and position_ids. Without position_ids, positions are computed
    from the mask if there is one, else from the length of the past. extra: further outputs, from the hidden state.
    """
    size = width // heads
    ids = gk.input("input_ids", ["batch", "sequence"], "int64")
    seen = gk.input("attention_mask", ["batch", "total"], "int64") if mask else None
    places = gk.input("position_ids", ["batch", "sequence"], "int64") if positions else None
    kept = [
        tuple(gk.input(past.format(i, kind), ["batch", heads, "past", size]) for kind in ("key", "value"))
        for i in range(layers)
    ]
    new = gk.shape(ids)[1:2]
    before = gk.shape(kept[0][0])[2:3]
    total = gk.add(new, before)
    steps = gk.range(gk.squeeze(before), gk.squeeze(total), np.int64(1))
    if places is None and seen is not None:
        counted = gk.sub(gk.cum_sum(seen, np.int64(1)), np.int64(1))
        places = gk.max(gk.slice(counted, before, total, np.array([1])), np.int64(0))
    elif places is None:
        places = gk.unsqueeze(steps, np.array([0]))
    init = {"type": "normal", "std": 0.3 * scale}
    h = gk.add(
        gk.nn.embedding(ids, vocab, width, init=init, name="token"),
        gk.nn.embedding(places, length, width, init=init, name="position"),
    )
    keys = gk.range(np.int64(0), gk.squeeze(total), np.int64(1))
    allowed = gk.less_or_equal(gk.unsqueeze(keys, np.array([0])), gk.unsqueeze(steps, np.array([1])))
    if seen is not None:
        allowed = gk.and_(allowed, gk.cast(gk.unsqueeze(seen, np.array([1, 2])), to="bool"))
    outputs = {}
    for i, (k_past, v_past) in enumerate(kept):
        normed = gk.nn.layer_norm(h, name=f"norm{i}")
        q, k, v = (_heads(gk.nn.linear(normed, width, init=init, name=f"{n}{i}"), heads, size) for n in "qkv")
        k, v = gk.concat(k_past, k, axis=2), gk.concat(v_past, v, axis=2)
        outputs |= {present.format(i, "key"): k, present.format(i, "value"): v}
        scores = gk.mul(gk.mat_mul(q, gk.transpose(k, perm=(0, 1, 3, 2))), np.float32(size**-0.5))
        shares = gk.softmax(gk.where(allowed, scores, np.float32(-1e9)), axis=-1)
        mixed = gk.reshape(gk.transpose(gk.mat_mul(shares, v), perm=(0, 2, 1, 3)), np.array([0, 0, width]))
        h = gk.add(h, gk.nn.linear(mixed, width, init=init, name=f"out{i}"))
        wide = gk.relu(gk.nn.linear(gk.nn.layer_norm(h, name=f"norm{i}b"), 4 * width, init=init, name=f"up{i}"))
        h = gk.add(h, gk.nn.linear(wide, width, init=init, name=f"down{i}"))
    last = gk.nn.layer_norm(h, name="norm")
    logits = gk.nn.linear(last, vocab, init={"type": "normal", "std": scale}, name="logits")
    more = {} if extra is None else extra(last)
    return gk.Model({"logits": logits, **outputs, **more}, name="decoder", seed=seed)


def spread(model, seed=0):
    """Return the model with large random weights, so that the most probable token changes from step to step."""
    rng = np.random.default_rng(seed)
    params = {n: (rng.standard_normal(a.shape) * 0.8).astype(a.dtype) for n, a in model.params.items()}
    return gk.Model.from_graph(model.graph, params)


def _heads(x, heads, size):
    return gk.transpose(gk.reshape(x, np.array([0, 0, heads, size])), perm=(0, 2, 1, 3))


def session(model, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    source = str(model) if not isinstance(model, gk.Model) else model.to_onnx().SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def greedy(runtime, prompt, count, past="past_key_values", present="present"):
    """Return the most probable tokens after a prompt, computed by a plain loop over ONNX Runtime with its cache."""
    names = [o.name for o in runtime.get_outputs()]
    wanted = {i.name: i for i in runtime.get_inputs()}
    kept = {
        n: np.zeros([1 if d == "batch" else 0 if isinstance(d, str) else d for d in i.shape], np.float32)
        for n, i in wanted.items()
        if n.startswith(past)
    }
    ids, fed, written = np.array([prompt]), 0, []
    for _ in range(count):
        size = ids.shape[1]
        feeds = {"input_ids": ids, **kept}
        if "attention_mask" in wanted:
            feeds["attention_mask"] = np.ones((1, fed + size), np.int64)
        if "position_ids" in wanted:
            feeds["position_ids"] = np.arange(fed, fed + size)[None]
        results = dict(zip(names, runtime.run(None, feeds), strict=True))
        kept = {n: results[n.replace(past, present)] for n in kept}
        fed += size
        ids = results["logits"][:, -1:].argmax(axis=-1)
        written.append(int(ids[0, 0]))
    return tuple(written)
