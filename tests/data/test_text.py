"""Vocabularies, sentences with labels, streams of text."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit import data
from graphkit.data import Vocabulary
from graphkit.errors import InputError, UsageError

GOOD = ["a good film", "good , good fun", "it's well-made !", "we laughed", "fine acting and a plot", "go see it"]
BAD = ["a bad film", "bad , dull mess", "it isn't any good", "we slept", "no plot at all", "a waste of time"]


@pytest.fixture
def reviews(tmp_path):
    (tmp_path / "film.pos").write_text("\n".join(GOOD * 10) + "\n")
    (tmp_path / "film.neg").write_text("\n".join([*BAD * 10, "", "  "]) + "\n")
    (tmp_path / "README.txt").write_text("not a class\n")
    return tmp_path


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("to be or not to be\r\n" * 20 + "zzz\n" * 10)
    return path


# --- vocabularies -----------------------------------------------------------------------------------


def test_words_and_marks_are_tokens():
    words = Vocabulary.build(["It's well-made, it's FUN!", "fun"])
    assert words.tokens == ("<pad>", "<unk>", "fun", "it's", "!", ",", "well-made")
    assert words.encode("it's  a fun\tfilm!").tolist() == [3, 1, 2, 1, 4]
    assert words.decode([3, 2, 0, 0]) == "it's fun"


def test_characters_are_tokens_as_they_are():
    characters = Vocabulary.build(["aab\r\n"], "char")
    assert characters.tokens == ("<pad>", "<unk>", "a", "\n", "\r", "b")
    assert characters.decode(characters.encode("ba\n")) == "ba\n"
    assert characters.encode("").dtype == np.int64


def test_rare_words_are_left_out():
    texts = ["a a a b b c c d"]
    assert Vocabulary.build(texts, min_count=2).tokens[2:] == ("a", "b", "c")
    assert Vocabulary.build(texts, size=4).tokens[2:] == ("a", "b")
    with pytest.raises(InputError, match=r"no token is left .*: of 4 tokens, none occurs 4 times or more"):
        Vocabulary.build(texts, min_count=4)
    with pytest.raises(InputError, match=r"no token is left .*: size=2 includes .*, so it must be at least 3"):
        Vocabulary.build(texts, size=2)


def test_a_vocabulary_is_a_file(tmp_path):
    words = Vocabulary.build(['é " \u2028 \\ b'], "char")
    words.save(tmp_path / "new" / "vocabulary.json")
    again = Vocabulary.load(tmp_path / "new" / "vocabulary.json")
    assert (again.tokens, again.level) == (words.tokens, "char")


@in_one_item()
@pytest.mark.parametrize("text", ["", "[]", '{"level": "word"}', '{"level": "word", "tokens": [1]}',
                                  '{"level": "line", "tokens": ["<pad>", "<unk>"]}',
                                  '{"level": "word", "tokens": ["<pad>", "<unk>", "a", "a"]}'])  # fmt: skip
def test_what_is_no_vocabulary(text):
    with pytest.raises(InputError, match="not a vocabulary"):
        Vocabulary.from_json(text)


# --- sentences --------------------------------------------------------------------------------------


def test_sentences_are_padded_and_labelled(reviews):
    (reviews / "film.pos").write_text("good one\n")
    (reviews / "film.neg").write_text("bad\nso very bad\n")
    found = data.read(f"sentences:{reviews}", bucket=2)
    assert found.classes == ("neg", "pos")
    assert found.targets.tolist() == [0, 0, 1]
    assert found.arrays["lengths"].tolist() == [1, 3, 2]
    number = found.vocabulary.encode
    assert found.arrays["x"].tolist() == [
        [*number("bad"), 0, 0, 0],
        [*number("so very bad"), 0],
        [*number("good one"), 0, 0],
    ]
    assert data.read(f"sentences:{reviews}", length=2, bucket=1).arrays["x"].shape == (3, 2)
    inputs, targets = found.take([2, 0])
    assert inputs["x"].shape == (2, 2)
    assert targets.tolist() == [1, 0]


def test_a_tenth_is_held_out_and_the_vocabulary_does_not_see_it(reviews):
    lines = [f"word{i} shared" for i in range(50)]
    (reviews / "film.pos").write_text("\n".join(lines))
    train, test = data.load(f"sentences:{reviews}")
    assert (len(train), len(test)) == (99, 11)
    assert np.bincount(test.targets).tolist() == [6, 5]
    assert train.vocabulary is test.vocabulary
    positive = test.take(np.flatnonzero(test.targets == 1))[0]["x"][:, 0]
    assert (positive == 1).all()  # words that only the test part has
    again = data.load(f"sentences:{reviews}").test
    np.testing.assert_array_equal(again.arrays["x"], test.arrays["x"])
    other = data.load(f"sentences:{reviews}", seed=1).test
    assert (other.arrays["lengths"] != test.arrays["lengths"]).any()
    known = data.load(f"sentences:{reviews}", vocabulary=Vocabulary.build(["shared"]))
    assert len(known.train.vocabulary) == 3


def test_batches_hold_sentences_of_similar_length(reviews):
    rng = np.random.default_rng(0)
    lines = [" ".join(["word"] * int(n)) for n in rng.integers(1, 60, 1000)]
    (reviews / "film.pos").write_text("\n".join(lines))
    (reviews / "film.neg").write_text("\n".join(lines))
    found = data.read(f"sentences:{reviews}")
    batches = list(found.batches(16))
    assert len(batches) == 125
    widths = {b.inputs["x"].shape[1] for b in batches}
    assert widths <= set(range(8, 65, 8))
    used = sum(b.inputs["lengths"].sum() for b in batches)
    assert used > 0.8 * sum(b.inputs["x"].size for b in batches)
    order = found.batches(16).order(0)
    assert sorted(order) == list(range(2000))
    np.testing.assert_array_equal(order, found.batches(8, rank=1, ranks=2).order(0))
    assert (order != found.batches(16).order(1)).any()
    # Lengths do not rise or fall along an epoch.
    means = [b.inputs["lengths"].mean() for b in batches]
    assert abs(np.corrcoef(means, np.arange(125))[0, 1]) < 0.3


def test_one_file_for_each_class(tmp_path):
    for name in ("spam", "ham", "news"):
        (tmp_path / f"{name}.txt").write_text(f"this is {name}\n" * 10)
    train, test = data.load(f"sentences:{tmp_path}")
    assert train.classes == ("ham", "news", "spam")
    assert (len(train), len(test)) == (27, 3)


# --- streams ----------------------------------------------------------------------------------------


def test_a_text_is_cut_at_its_end(book):
    train, test = data.load(f"text:{book}")
    assert train.num_classes == len(train.vocabulary) == 2 + len(set("to be or not to be\r\n"))
    assert train.vocabulary.decode(train.arrays["x"][:6]) == "to be "
    assert train.vocabulary.decode(train.targets[:6]) == "o be o"
    assert (test.arrays["x"][-8:-4] == 1).any()  # z, which the first nine tenths do not have
    words = data.load(f"text:{book}", level="word", min_count=30).train
    assert words.vocabulary.tokens[2:] == ("to", "be")


def test_streams_go_on_from_batch_to_batch(book):
    train = data.load(f"text:{book}", length=7).train
    batches = list(train.batches(3))
    steps = len(train) // 3
    assert len(batches) == -(-steps // 7)
    assert [b.inputs.shape for b in batches] == [(7, 3)] * (steps // 7) + [(steps % 7, 3)]
    whole = np.concatenate([b.inputs for b in batches])
    for stream in range(3):
        np.testing.assert_array_equal(whole[:, stream], train.arrays["x"][stream * steps : (stream + 1) * steps])
    for b in batches:
        np.testing.assert_array_equal(b.inputs[1:], b.targets[:-1])
        assert b.size == b.inputs.size
    resumed = list(train.batches(3, start=2, seed=9))
    np.testing.assert_array_equal(resumed[0].inputs, batches[2].inputs)
    assert len(list(train.batches(3, drop_last=True))) == steps // 7


def test_ranks_share_the_streams(book):
    train = data.load(f"text:{book}", length=7).train
    whole = next(iter(train.batches(4))).inputs
    parts = [next(iter(train.batches(2, rank=r, ranks=2))) for r in range(2)]
    np.testing.assert_array_equal(np.concatenate([p.inputs for p in parts], axis=1), whole)
    assert [(p.size, p.global_size) for p in parts] == [(14, 28)] * 2


# --- errors -----------------------------------------------------------------------------------------


def test_errors_name_the_file(reviews, book, tmp_path):
    def fails(message, spec, error=InputError, **options):
        with pytest.raises(error, match=message):
            data.load(spec, **options)

    fails("nowhere: no such folder", "sentences:nowhere")
    fails("book.txt: not a folder", f"sentences:{book}")
    fails("sentences does not come with the package and needs a path", "sentences:")
    fails("nowhere.txt: No such file", "text:nowhere.txt")
    empty = tmp_path / "empty"
    empty.mkdir()
    fails("it contains no file", f"sentences:{empty}")
    (empty / "only.txt").write_text("one class\n")
    fails("it contains only.txt", f"sentences:{empty}")
    (empty / "only.txt").write_bytes(b"caf\xe9\n")
    fails(r"only.txt: not UTF-8 text \(byte 3\)", f"text:{empty / 'only.txt'}")
    (empty / "a.pos").write_text("\n")
    (empty / "a.neg").write_text("\n")
    fails("found no sentence in a.neg, a.pos", f"sentences:{empty}")
    (empty / "a.pos").write_text("one\n")
    fails("1 sample cannot be divided into training and test data", f"sentences:{empty}")
    fails("no option 'lenght'; did you mean 'length'", f"text:{book}", UsageError, lenght=3)
    fails("digits has no options", "digits", UsageError, length=3)
    fails("length must be positive", f"text:{book}", UsageError, length=0)
    fails("length and bucket must be positive", f"sentences:{reviews}", UsageError, bucket=0)
    fails("level of a vocabulary must be word or char", f"text:{book}", UsageError, level="line")
    fails("test_fraction must be between", f"text:{book}", UsageError, test_fraction=1.0)
    (empty / "short.txt").write_text("ab")
    fails("a language model needs at least two", f"text:{empty / 'short.txt'}")
    with pytest.raises(InputError, match="are too few for 1000 streams"):
        data.load(f"text:{book}").train.batches(1000)
