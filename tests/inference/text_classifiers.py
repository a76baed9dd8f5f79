"""A small classifier with the inputs of Hugging Face models, and its results in numpy."""

from __future__ import annotations

import json

import numpy as np

import graphkit as gk
from graphkit.ops import F

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "a", "very", "not", "long", "boring"]
CLASSES = ["negative", "neutral", "positive"]


def tokenizer_json():
    """Return a WordPiece-like tokenizer.json that adds [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return library.to_str()


def classifier(segments=True, length="T", batch="N", positions=16):
    """A masked mean of embeddings of tokens, positions and segments, and a linear layer."""
    ids, mask, kinds = (
        gk.input(name, [batch, length], "int64") for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    h = gk.nn.embedding(ids, len(WORDS), 4, name="words")
    count = F.gather(F.shape(ids), np.int64(1))
    places = F.unsqueeze(F.range(np.int64(0), count, np.int64(1)), np.array([0]))
    h = F.add(h, gk.nn.embedding(places, positions, 4, name="positions"))
    if segments:
        h = F.add(h, gk.nn.embedding(kinds, 2, 4, name="segments"))
    weight = F.unsqueeze(F.cast(mask, to="float32"), np.array([2]))
    total = F.reduce_sum(F.mul(h, weight), np.array([1]), keepdims=0)
    pooled = F.div(total, F.reduce_sum(weight, np.array([1]), keepdims=0))
    return gk.Model({"logits": gk.nn.linear(pooled, 3, name="head")}, seed=3)


def logits(net, texts, limit=None):
    """Compute the logits in numpy, one text at a time, with the package `tokenizers`."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(tokenizer_json())
    if limit is not None:
        library.enable_truncation(limit)
    p, rows = net.params, []
    for text in texts:
        numbers = library.encode(text).ids
        h = p["words_weight"][numbers] + p["positions_weight"][: len(numbers)]
        if "segments_weight" in p:
            h = h + p["segments_weight"][0]
        rows.append(h.mean(0) @ p["head_weight"].T + p["head_bias"])
    return np.array(rows)


def write_folder(folder, net, **config):
    """Write model.onnx, tokenizer.json and config.json as `optimum-cli export onnx` does."""
    folder.mkdir(exist_ok=True)
    net.save(folder / "model.onnx")
    (folder / "tokenizer.json").write_text(tokenizer_json())
    config = {"model_type": "bert", "id2label": {str(i): name for i, name in enumerate(CLASSES)}, **config}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.onnx"
