"""Files of Hugging Face beside an ONNX file: the tokenizer, the names of classes, and the largest number of tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from graphkit.data.preprocessing.vocabulary import read_text
from graphkit.errors import InputError
from graphkit.model import CLASSES, MAX_TOKENS, VOCABULARY, VOCABULARY_FILE, Model

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
        meta[VOCABULARY], meta[VOCABULARY_FILE] = read_text(folder / TOKENIZER), str(folder / TOKENIZER)
        read.append(f"the tokenizer of {folder / TOKENIZER}")
    config = _object(folder / CONFIG)
    if CLASSES not in meta and (names := _class_names(folder / CONFIG, config)):
        meta[CLASSES] = json.dumps(names, ensure_ascii=False)
        read.append(f"the class names of {folder / CONFIG}")
    if MAX_TOKENS not in meta and (longest := _longest(folder, config)) is not None:
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
    if repeated := next((name for name in names if names.count(name) > 1), None):
        numbers = [str(number) for number, name in enumerate(names) if name == repeated]
        raise InputError(
            f"{path}: id2label gives the classes {' and '.join(numbers)} the same name {repeated!r}, so classes cannot "
            "be matched by name. Change id2label, or remove it to use class numbers"
        )
    return [] if names == [f"LABEL_{number}" for number in range(len(names))] else names


def _longest(folder: Path, config: dict[str, Any]) -> int | None:
    """Return the largest number of tokens that the model takes, or None.

    RoBERTa's positions begin after the number of the padding token, so fewer of them can be used.

    Args:
        folder: The folder of the files.
        config: The content of config.json.
    """
    path = folder / CONFIG
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise InputError(f"{path}: model_type must be a text, not {kind!r}")
    positions = _count(path, config, "max_position_embeddings")
    if positions is not None and kind in _OFFSET:
        padding = config.get("pad_token_id")
        padding = 1 if padding is None else padding
        if isinstance(padding, bool) or not isinstance(padding, int) or not 0 <= padding < positions - 1:
            raise InputError(
                f"{path}: pad_token_id must be a token number below max_position_embeddings - 1, which is "
                f"{positions - 1}, not {padding!r}"
            )
        positions -= padding + 1
    found = _count(folder / TOKENIZER_CONFIG, _object(folder / TOKENIZER_CONFIG), "model_max_length")
    return min((size for size in (found, positions) if size is not None), default=None)


def _count(path: Path, config: dict[str, Any], name: str) -> int | None:
    """Return a number of tokens; None if it is missing or unlimited. Raises InputError if it is not a number above 0.

    Hugging Face writes huge numbers, -1 or 0 if there is no limit.
    """
    size = config.get(name)
    if size is None:
        return None
    is_number = isinstance(size, (int, float)) and not isinstance(size, bool)
    if is_number and (size in (0, -1) or size >= _UNLIMITED):
        return None
    if not is_number or not size > 0 or size != int(size):
        raise InputError(f"{path}: {name} must be a whole number above 0, not {size!r}")
    return int(size)


# Kinds of models whose positions begin after the number of the padding token.
_OFFSET = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm", "data2vec-text"})
