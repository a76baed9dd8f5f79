"""Export small networks of transformers and timm to ONNX, with random weights, for `contention.py --files`.

    pip install transformers timm onnxscript
    python bench/exported.py FOLDER [--only gpt2,lcnet_050]

Writes NAME.onnx, with fixed shapes, and NAME.npz, with an array for each input. If the installed packages lack a
network, or PyTorch cannot export it, it is left out with a message, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TOKENS, WORDS = 12, 500
_WORDS = {"vocab_size": WORDS}
_WIDE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **_WORDS}
_ENCODER = _WIDE | {"intermediate_size": 128, "max_position_embeddings": 64}
_DECODER = _ENCODER | {"num_key_value_heads": 2}
_LANGUAGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, **_WORDS}),
    "opt": ("OPTConfig", "OPTForCausalLM", _WIDE | {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "bert": ("BertConfig", "BertModel", _ENCODER),
    "roberta": ("RobertaConfig", "RobertaModel", _ENCODER),
    "electra": ("ElectraConfig", "ElectraModel", _ENCODER | {"embedding_size": 64}),
    "albert": ("AlbertConfig", "AlbertModel", _ENCODER | {"embedding_size": 32}),
    "distilbert": (
        "DistilBertConfig", "DistilBertModel", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, **_WORDS},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _DECODER),
    "mistral": ("MistralConfig", "MistralForCausalLM", _DECODER),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _DECODER),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _ENCODER),
    "t5_encoder": (
        "T5Config", "T5EncoderModel",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, **_WORDS},
    ),
}  # fmt: skip
_PICTURES = {"vit": ("ViTConfig", "ViTModel", _ENCODER | {"image_size": 32, "patch_size": 8})}
_TIMM = (
    "lcnet_050", "tinynet_e", "mobilenetv3_small_050", "mnasnet_small", "ghostnet_050", "test_resnet", "test_vit",
    "mobilevit_xxs", "resnet10t", "edgenext_xx_small",
)  # fmt: skip


class _First(nn.Module):
    """The first result, as a tensor: what a caller of these networks reads."""

    def __init__(self, network: nn.Module, keyword: str):
        super().__init__()
        self.network, self.keyword = network, keyword

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.network(**{self.keyword: x})[0]
        return result


def _transformers(kind: str, model: str, options: dict[str, Any], keyword: str) -> nn.Module:
    import transformers

    config = getattr(transformers, kind)(**options, use_cache=False, attn_implementation="eager")
    return _First(getattr(transformers, model)(config), keyword)


def _timm(name: str) -> nn.Module:
    import timm

    network: nn.Module = timm.create_model(name, pretrained=False)
    return network


def networks() -> dict[str, Callable[[], tuple[nn.Module, Tensor]]]:
    """Return functions that make a network and an input, by name."""
    made: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {}
    for name, (kind, model, options) in _LANGUAGE.items():
        made[name] = lambda k=kind, m=model, o=options: (
            _transformers(k, m, o, "input_ids"), torch.randint(WORDS, (1, TOKENS)),
        )  # fmt: skip
    for name, (kind, model, options) in _PICTURES.items():
        made[name] = lambda k=kind, m=model, o=options: (
            _transformers(k, m, o, "pixel_values"), torch.randn(1, 3, 32, 32),
        )  # fmt: skip
    for name in _TIMM:
        side = 160 if name.startswith("test") else 128
        made[name] = lambda n=name, s=side: (_timm(n), torch.randn(1, 3, s, s))
    return made


def export(make: Callable[[], tuple[nn.Module, Tensor]], path: Path) -> None:
    torch.manual_seed(0)
    network, x = make()
    network.eval()
    torch.onnx.export(network, (x,), path, input_names=["x"], output_names=["y"], dynamo=True, external_data=False)
    np.savez(path.with_suffix(".npz"), x=x.numpy())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(networks()), metavar="NAMES")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in options.only:
        try:
            export(networks()[name], options.folder / f"{name}.onnx")
        except Exception as error:  # noqa: BLE001 - a network that is left out is named, and the others are made
            failed = True
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
