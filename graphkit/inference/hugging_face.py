"""Files of Hugging Face beside an ONNX file: the tokenizer, the names of classes, and the largest number of tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from graphkit.data.preprocessing.vocabulary import read_text
from graphkit.errors import InputError
from graphkit.model import CLASSES, MAX_TOKENS, VOCABULARY, Model

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
# The input of token numbers in models of Hugging Face.
_TOKENS = "input_ids"
# Larger values of model_max_length mean that there is no limit.
_UNLIMITED = 10**9


def with_files_beside(model: Model, path: str | os.PathLike[str]) -> tuple[Model, str]:
    """Return a model of Hugging Face with the tokenizer and class names of the files beside it, and a note.

    Only for `.onnx` files with an input `input_ids`. Metadata of the model come before these files. The note says what
    was read, and is empty if nothing was.

    Raises:
        InputError: A file is damaged.
    """
    if not os.fspath(path).endswith(".onnx") or _TOKENS not in model.input_types:
        return model, ""
    folder, meta = Path(path).parent, dict(model.meta)
    read = []
    if VOCABULARY not in meta and (folder / TOKENIZER).is_file():
        meta[VOCABULARY] = read_text(folder / TOKENIZER)
        read.append(f"the tokenizer of {folder / TOKENIZER}")
    config = _object(folder / CONFIG)
    if CLASSES not in meta and (names := _class_names(folder / CONFIG, config)):
        meta[CLASSES] = json.dumps(names, ensure_ascii=False)
        read.append(f"the class names of {folder / CONFIG}")
    if MAX_TOKENS not in meta and (longest := _longest(config, _object(folder / TOKENIZER_CONFIG))) is not None:
        meta[MAX_TOKENS] = str(longest)
        read.append(f"at most {longest} tokens")
    if not read:
        return model, ""
    return Model.from_graph(model.graph, model.params.entries(), meta=meta), f"using {', '.join(read)}"


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} must contain a JSON object")
    return found


def _class_names(path: Path, config: dict[str, Any]) -> list[str]:
    """Return the names of id2label in the order of their numbers; none if they are only LABEL_0, LABEL_1, ..."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or not labels:
        return []
    try:
        numbered = {int(number): str(name) for number, name in labels.items()}
    except ValueError:
        raise InputError(f"{path}: the keys of id2label must be class numbers") from None
    if sorted(numbered) != list(range(len(labels))):
        raise InputError(f"{path}: the keys of id2label must be the class numbers from 0 to {len(labels) - 1}")
    names = [numbered[number] for number in range(len(labels))]
    return [] if names == [f"LABEL_{number}" for number in range(len(names))] else names


def _longest(config: dict[str, Any], tokenizer: dict[str, Any]) -> int | None:
    """Return the largest number of tokens that the model takes, or None.

    RoBERTa's positions begin after the number of the padding token, so fewer of them can be used.
    """
    sizes = [tokenizer.get("model_max_length"), config.get("max_position_embeddings")]
    if config.get("model_type") in _OFFSET and isinstance(sizes[1], int):
        sizes[1] -= int(config.get("pad_token_id", 1)) + 1
    return min((int(s) for s in sizes if isinstance(s, (int, float)) and 0 < s < _UNLIMITED), default=None)


# Kinds of models whose positions begin after the number of the padding token.
_OFFSET = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm", "data2vec-text"})
