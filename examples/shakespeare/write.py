"""Continue a text with a character language model, from its ONNX file.

python examples/shakespeare/write.py net.onnx --begin "ROMEO:" --count 400 --temperature 0.8
"""

from __future__ import annotations

import argparse

import numpy as np

import graphkit as gk


def continued(net: gk.Model, begin: str, count: int, *, temperature: float, seed: int) -> str:
    """Return `count` characters after `begin`, drawn from the model's distribution.

    With a temperature below 1, likely characters are drawn more often. The state of each run is an input of the next.
    """
    vocabulary = gk.data.Vocabulary.from_json(net.meta["vocabulary"])
    draw = np.random.default_rng(seed)
    run = net.compile().run
    layers, _, hidden = net.input_types["h"].shape
    state = {name: np.zeros((int(layers), 1, int(hidden)), np.float32) for name in "hc"}
    tokens, written = vocabulary.encode(begin), []
    for _ in range(count):
        results = run({"x": tokens[:, None], **state})
        state = {name: results[f"last_{name}"] for name in "hc"}
        logits = results["logits"][-1, 0].astype(np.float64) / temperature
        logits[:2] = -np.inf  # padding and the unknown character
        shares = np.exp(logits - logits.max())
        tokens = draw.choice(len(shares), 1, p=shares / shares.sum())
        written.append(int(tokens[0]))
    return vocabulary.decode(written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the .onnx file, or the folder of a run")
    parser.add_argument("--begin", default="ROMEO:")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    net = gk.load(args.model)
    print(args.begin + continued(net, args.begin, args.count, temperature=args.temperature, seed=args.seed))


if __name__ == "__main__":
    main()
