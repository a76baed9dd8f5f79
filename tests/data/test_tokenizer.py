"""Tokenizer, compared with the package `tokenizers` itself."""

import json
import pickle
import sys

import numpy as np
import pytest
from combinations import in_one_item
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import graphkit as gk
from graphkit.data import Tokenizer, Vocabulary
from graphkit.data.preprocessing.tokenizer import read_vocabulary
from graphkit.errors import InputError, MissingDependency, UsageError
from graphkit.inference.generation.text_stream import TextStream

TEXTS = ("a good film", "the film isn't good, the plot is", "héllo wörld", "日本語 is fine 🎬🎞", "")


def byte_level():
    """Byte-level BPE, as of GPT-2."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    library.train_from_iterator(TEXTS * 3, trainer)
    return library


def word_pieces():
    """WordPiece with [CLS] and [SEP], as of BERT."""
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(cleanup=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    library.train_from_iterator(
        TEXTS * 3, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    )
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return library


def metaspace():
    """A tokenizer that represents spaces by a special character, like sentencepiece."""
    library = Library(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.train_from_iterator(
        TEXTS * 3,
        trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<s>", "</s>", "<pad>"], show_progress=False),
    )
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


LIBRARIES = {"bytes": byte_level(), "pieces": word_pieces(), "spaces": metaspace()}


@pytest.fixture(params=LIBRARIES)
def pair(request):
    library = LIBRARIES[request.param]
    return library, Tokenizer(library.to_str())


def test_numbers_and_texts_are_those_of_the_library(pair):
    library, tokenizer = pair
    for text in TEXTS:
        expected = library.encode(text)
        assert tokenizer.encode(text).tolist() == expected.ids
        assert tokenizer.encode_part(text).tolist() == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(expected.ids) == library.decode(expected.ids)
    assert len(tokenizer) == library.get_vocab_size()
    assert all(library.token_to_id(token) == number for number, token in enumerate(tokenizer.tokens))


def test_beginnings_of_texts_have_no_token_for_the_end():
    library = Library.from_str(LIBRARIES["spaces"].to_str())
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = Tokenizer(library.to_str())
    for text in TEXTS:
        assert tokenizer.encode_beginning(text).tolist() == library.encode(text).ids[:-1]
    pieces = Tokenizer(LIBRARIES["pieces"].to_str())
    assert pieces.encode_beginning(TEXTS[0]).tolist() == LIBRARIES["pieces"].encode(TEXTS[0]).ids[:-1]


def test_truncation_keeps_special_tokens(pair):
    library, tokenizer = pair
    for length in (3, 5, 100):
        limited = Library.from_str(library.to_str())
        limited.enable_truncation(length)
        for text in TEXTS:
            assert tokenizer.encode(text, length).tolist() == limited.encode(text).ids
    assert tokenizer.encode(TEXTS[1]).tolist() == library.encode(TEXTS[1]).ids  # the limit is not kept


def test_truncation_and_padding_of_the_file_are_not_used():
    library = Library.from_str(LIBRARIES["pieces"].to_str())
    library.enable_truncation(4)
    library.enable_padding(pad_id=0, length=50)
    tokenizer = Tokenizer(library.to_str())
    assert tokenizer.encode(TEXTS[1]).tolist() == LIBRARIES["pieces"].encode(TEXTS[1]).ids
    assert tokenizer.padding == 0


def test_special_tokens():
    found = {name: Tokenizer(library.to_str()) for name, library in LIBRARIES.items()}
    assert {name: [t.tokens[n] for n in t.ends] for name, t in found.items()} == {
        "bytes": ["<|endoftext|>"], "pieces": [], "spaces": ["</s>"],
    }  # fmt: skip
    assert {name: found[name].tokens[found[name].padding] for name in ("pieces", "spaces")} == {
        "pieces": "[PAD]", "spaces": "<pad>",
    }  # fmt: skip


def test_text_of_single_tokens_is_the_whole_text(pair):
    """Pieces of text have whole characters, whatever tokens a character has."""
    library, tokenizer = pair
    prompt = tokenizer.encode("the film").tolist()
    for text in TEXTS[:-1]:
        tokens = tokenizer.encode_part(f" {text}").tolist()
        stream = TextStream(tokenizer, prompt)
        pieces = [stream.add(token) for token in tokens]
        assert not any("\ufffd" in piece for piece in pieces)
        pieces.append(stream.finish())
        assert "".join(pieces) == stream.text
        assert library.decode(prompt) + stream.text == library.decode(prompt + tokens)


def test_incomplete_characters_are_held_back():
    tokenizer = Tokenizer(LIBRARIES["bytes"].to_str())
    tokens = [int(tokenizer.token_number(c)) for c in "ðŁİ¬"]  # the four bytes of one character
    stream = TextStream(tokenizer, [])
    assert [stream.add(token) for token in tokens] == ["", "", "", "\U0001f3ac"]
    assert stream.finish() == ""
    cut = TextStream(tokenizer, [])
    assert [cut.add(token) for token in tokens[:3]] == ["", "", ""]
    assert cut.finish() == "\ufffd"
    continued = TextStream(tokenizer, tokens[:2])
    assert [continued.add(token) for token in tokens[2:]] == ["", "\U0001f3ac"]


def byte_tokens(data):
    """The tokens of single bytes in the library with byte-level BPE."""
    alphabet = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2 writes other bytes as U+0100, ...
    others = [byte for byte in range(256) if byte not in alphabet]
    return [
        LIBRARIES["bytes"].token_to_id(chr(byte if byte in alphabet else 256 + others.index(byte))) for byte in data
    ]


class Counting(Tokenizer):
    """Counts the tokens that are decoded."""

    decoded = 0

    def decode(self, numbers):
        self.decoded += len(numbers)
        return super().decode(numbers)


@pytest.mark.parametrize("count", [500, 1000])
def test_bytes_that_are_no_text_are_returned_in_linear_time(count):
    tokenizer = Counting(LIBRARIES["bytes"].to_str())
    stream = TextStream(tokenizer, [])
    pieces = [stream.add(token) for token in byte_tokens(b"\xff") * count]
    assert count - 8 < len("".join(pieces)) < count
    assert tokenizer.decoded < 30 * count
    assert stream.finish()
    assert stream.text == "\ufffd" * count


@in_one_item()
@pytest.mark.parametrize("seed", range(20))
def test_stream_of_any_bytes_is_the_text_of_the_bytes(seed):
    rng = np.random.default_rng(seed)
    parts = ["é", "日", "🎬", "a", b"\xff", b"\xe6\x97", b"\xf0\x9f\x8e", b"\x80", b"\xed\xa0"]
    chosen = [parts[n] for n in rng.integers(0, len(parts), 200)]
    data = b"".join(part.encode() if isinstance(part, str) else part for part in chosen)
    stream = TextStream(Tokenizer(LIBRARIES["bytes"].to_str()), [])
    pieces = [stream.add(token) for token in byte_tokens(data)]
    assert all(any(pieces[start : start + 10]) for start in range(len(pieces) - 10))
    pieces.append(stream.finish())
    assert "".join(pieces) == stream.text == data.decode(errors="replace")


def test_tokens_that_begin_and_end_inside_of_characters():
    """No token ends with a character, but the text is complete."""
    data = "日本語" * 20
    raw = data.encode()
    cuts = [0, *range(2, len(raw), 3), len(raw)]

    class Bytes(Vocabulary):
        def __init__(self):
            super().__init__(["<pad>", "<unk>"])

        def decode(self, numbers):
            return b"".join(raw[cuts[n] : cuts[n + 1]] for n in numbers).decode(errors="replace")

    stream = TextStream(Bytes(), [])
    pieces = [stream.add(number) for number in range(len(cuts) - 1)]
    assert "".join(pieces[:-2])
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + stream.finish() == data


def byte_fallback():
    """Characters without a token are tokens of their bytes, as of Llama."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a"]
    library = Library(
        models.BPE({token: n for n, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    )
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return library


@in_one_item()
@pytest.mark.parametrize("prompt", ["", "a", "本語日", "本語日本"])
def test_characters_of_byte_tokens(prompt):
    """The decoder reads no character of a run of bytes if the run begins inside of one."""
    library = byte_fallback()
    tokenizer = Tokenizer(library.to_str())
    text = "日本語日本語🎬日本a日本"
    stream = TextStream(tokenizer, tokenizer.encode(prompt).tolist())
    assert "".join(stream.add(token) for token in library.encode(text).ids) == text


def test_file_and_metadata(pair, tmp_path):
    library, tokenizer = pair
    library.save(str(tmp_path / "tokenizer.json"))
    read = read_vocabulary(tmp_path / "tokenizer.json")
    assert isinstance(read, Tokenizer)
    assert isinstance(Tokenizer.load(tmp_path / "tokenizer.json"), Tokenizer)
    assert read.tokens == tokenizer.tokens
    assert pickle.loads(pickle.dumps(read)).encode(TEXTS[0]).tolist() == library.encode(TEXTS[0]).ids
    words = Vocabulary.build(TEXTS)
    words.save(tmp_path / "vocabulary.json")
    assert read_vocabulary(tmp_path / "vocabulary.json").tokens == words.tokens


def test_data_sets_with_a_tokenizer(pair, tmp_path):
    library, tokenizer = pair
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n".join(TEXTS[:4]))
    data = gk.data.read(f"sentences:{tmp_path}", vocabulary=tokenizer, length=6)
    limited = Library.from_str(library.to_str())
    limited.enable_truncation(6)
    inputs, _ = data.take(np.arange(4))
    for row, length, text in zip(inputs["x"], inputs["lengths"], TEXTS[:4], strict=True):
        assert row[:length].tolist() == limited.encode(text).ids
        assert (row[length:] == tokenizer.padding).all()
    text = "\n".join(TEXTS[:4])
    stream = gk.data.read(f"text:{tmp_path / 'a.txt'}", vocabulary=tokenizer)
    ids = library.encode(text, add_special_tokens=False).ids
    assert [*stream.arrays["x"], stream.targets[-1]] == ids


@in_one_item()
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither a tokenizer.json nor a vocabulary"),
        ("[1]", "neither a tokenizer.json nor a vocabulary"),
        ('{"model": {}}', "not a tokenizer.json"),
        ('{"level": "word"}', "neither a tokenizer.json nor a vocabulary"),
        ("[" * 100_000, "neither a tokenizer.json nor a vocabulary"),
    ],
)
def test_other_files_are_errors(tmp_path, text, message):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path / "t.json")
    with pytest.raises(InputError, match=r"none\.json: No such file"):
        read_vocabulary(tmp_path / "none.json")


def test_numbers_with_large_gaps_are_an_error():
    record = json.loads(LIBRARIES["pieces"].to_str())
    record["model"]["vocab"]["[SEP]"] = 4_000_000_000
    with pytest.raises(InputError, match="damaged"):
        Tokenizer(json.dumps(record))


def test_gaps_between_numbers_have_no_text():
    record = json.loads(LIBRARIES["pieces"].to_str())
    record["model"]["vocab"]["zz"] = len(record["model"]["vocab"]) + 5
    tokenizer = Tokenizer(json.dumps(record))
    assert len(tokenizer.unwritten) == 5
    assert tokenizer.tokens[tokenizer.unwritten[0]] == ""


def test_texts_that_are_no_unicode():
    with pytest.raises(InputError, match="cannot be encoded"):
        Tokenizer(LIBRARIES["bytes"].to_str()).encode("\ud800")


def test_lengths_below_the_special_tokens_are_errors(pair):
    library, tokenizer = pair
    needed = library.num_special_tokens_to_add(False)
    assert tokenizer.encode(TEXTS[1], needed).tolist() == library.encode("").ids
    for length in range(-1, needed):
        with pytest.raises(InputError, match=rf"length is {length}, but the special tokens of a text need {needed} "):
            tokenizer.encode(TEXTS[1], length)
    assert tokenizer.encode(TEXTS[1]).tolist() == library.encode(TEXTS[1]).ids


@pytest.mark.parametrize("number", [-1, 2**32, 10**12])
def test_numbers_that_no_token_can_have_are_errors(pair, number):
    with pytest.raises(InputError, match=rf"tokenizer\.json: {number} is not the number of a token"):
        pair[1].decode([1, number])


def test_panic_of_the_package_is_an_error(pair):
    record = json.loads(LIBRARIES["spaces"].to_str())
    special = record["post_processor"]["special_tokens"]
    special["<q>"] = special.pop("<s>")
    tokenizer = Tokenizer(json.dumps(record))
    for length in (None, 4):
        with pytest.raises(InputError, match=r"tokenizer\.json: a text cannot be encoded"):
            tokenizer.encode("a film", length)
    assert tokenizer.encode_part("a film").tolist() == LIBRARIES["spaces"].encode("a film").ids[1:]


def test_panic_in_decoding_is_an_error(monkeypatch):
    class PanicException(BaseException):  # as pyo3 names it
        pass

    class Panics:
        def decode(self, *_, **__):
            raise PanicException("index out of bounds")

    tokenizer = Tokenizer(LIBRARIES["bytes"].to_str())
    monkeypatch.setattr(tokenizer, "_tokenizer", Panics())
    with pytest.raises(InputError, match="tokens cannot be decoded: index out of bounds"):
        tokenizer.decode([1])


@pytest.mark.parametrize("number", [120, 4_000_000_000])
def test_padding_without_a_token_is_an_error(number):
    record = json.loads(LIBRARIES["pieces"].to_str())
    record["padding"] = {
        "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": number,
        "pad_type_id": 0, "pad_token": "zz",
    }  # fmt: skip
    with pytest.raises(InputError, match=f"damaged: pad_id is {number}, but tokens have numbers up to "):
        Tokenizer(json.dumps(record))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependency, match=r"needs the package tokenizers.*\[text\]"):
        Tokenizer("{}")
    with pytest.raises(UsageError, match="train it with the package"):
        Tokenizer.build(["a"])
