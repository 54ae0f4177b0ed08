"""Tunes in ABC notation: codes and music, splits by title, unreadable tunes, and the recipe's model of tunes."""

from pathlib import Path

import pytest
import torch

import unifier as uf
from unifier.config import load_experiment
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.data.source import SPLITS, use_data_folder
from unifier.datasets.abc_tunes import TUNE_KINDS, NottinghamTunes
from unifier_tokenizers import InputError, MarkedText, SubwordTokenizer, Vocabulary
from unifier_tokenizers.subwords import EOS

TUNE = """X: {k}
T:Tune {title} of {file}
% a comment
S:someone
M:4/4
L:1/4
K:{key}
M:6/8
P:A
A:|"D"def fed|
K:Em
N:a note
gfg e2|
"""


def write(folder: Path, **changed: str) -> NottinghamTunes:
    """Write 20 tunes to each file. The tunes 0 and 1 have equal titles. `changed` replaces the text of a file."""
    for file in TUNE_KINDS:
        tunes = "\n".join(
            TUNE.format(k=k, title=max(k, 1), file=file, key="G" if k % 2 else "Am").replace("g2", f"g{k}")
            for k in range(20)
        )
        (folder / f"{file}.abc").write_text(changed.get(file, tunes))
    return NottinghamTunes(data=folder)


def test_codes_are_in_front_of_the_music(tmp_path: Path) -> None:
    source = write(tmp_path)
    assert source.codes == (*sorted({f"<{kind}>" for kind in TUNE_KINDS.values()}), "<6/8>", "<Am>", "<G>")
    parts = {name: open_split(source, name) for name in SPLITS}
    texts = [example.input for part in parts.values() for example in part]
    assert len(texts) == 20 * len(TUNE_KINDS)
    assert '<waltz> <6/8> <G> L:1/4\nP:A\nA:|"D"def fed|\nK:Em\ngfg e2|' in texts
    assert all(type(text) is MarkedText for text in texts)
    assert len(source.sha256) == 64


def test_equal_titles_share_a_split(tmp_path: Path) -> None:
    source = write(tmp_path)
    found = {name: [tune.title for tune in source.split(name)._entries] for name in SPLITS}  # pyright: ignore[reportPrivateUsage]
    assert sum(map(len, found.values())) == 20 * len(TUNE_KINDS)
    assert not any({*found[a]} & {*found[b]} for a, b in (("train", "val"), ("train", "test"), ("val", "test")))
    assert all(len(found[name]) >= len(TUNE_KINDS) for name in SPLITS)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ("X:1\nT:a\nK:G\nabc|", "no meter"),
        ("X:1\nT:a\nM:3/4\nabc|", "no key"),
        ("X:1\nT:a\nM:3/4\nK:G", "no notes"),
        ("X:1\nT:a\nM:3/4\nK:G\nA<G>A", "'<G>'"),
    ],
)
def test_unreadable_tune_is_named_or_skipped(tune: str, message: str, tmp_path: Path) -> None:
    jigs = "\n".join(TUNE.format(k=k, title=k, file="jigs", key="G") for k in range(9))
    source = write(tmp_path, jigs=f"{jigs}\n\n{tune}")
    (split,) = [part for part in (open_split(source, name) for name in SPLITS) if _has(part, tune)]
    vocabulary = Vocabulary.fit(["abc"], level="byte", extra=source.codes)
    parts = SubwordTokenizer(vocabulary, 4, begin=True), uf.LanguageModelingHead(len(vocabulary), 4)
    with pytest.raises(InputError, match=rf"jigs\.abc, line \d+: .*{message}") as error:
        encode_split(split, *parts)
    assert "\n" not in str(error.value)
    encoded, skipped = encode_split(split, *parts, bad_examples="skip")
    assert (len(encoded), len(skipped)) == (len(split) - 1, 1)


def _has(part: object, tune: str) -> bool:
    return any(entry.lines == tuple(tune.split("\n")) for entry in part._entries)  # pyright: ignore


@pytest.mark.parametrize(("content", "message"), [("no tune", "no tunes"), ("", "no text")])
def test_broken_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"jigs\.abc .*{message}"):
        write(tmp_path, jigs=content).split("train")
    with pytest.raises(InputError, match=r"no ashover\.abc"):
        NottinghamTunes(data=tmp_path / "none").split("train")


@pytest.mark.slow
def test_recipe_predicts_codes_and_music(tmp_path: Path) -> None:
    (tmp_path / "nottingham_abc").mkdir()
    source = write(tmp_path / "nottingham_abc")
    with use_data_folder(tmp_path):
        experiment = load_experiment("language_model")(data="nottingham_abc", training=uf.Training(steps=1))
        with pytest.raises(InputError, match="memory=8"):
            load_experiment("language_model")(data="nottingham_abc", memory=8)
    assert isinstance(experiment, uf.Experiment)
    (task,) = experiment.tasks.values()
    head, tokenizer = task.head, task.tokenizer
    assert isinstance(head, uf.LanguageModelingHead)
    assert isinstance(tokenizer, SubwordTokenizer)
    assert head.marked_text
    example = open_split(source, "test")[0]
    ids = tokenizer.encode(example.input).values
    assert [tokenizer.vocabulary.is_special(int(i)) for i in ids] == [True] * 4 + [False] * (len(ids) - 5) + [True]
    assert int(ids[-1]) == EOS
    assert tokenizer.vocabulary.codec.token_to_id("<") is None
    # The codes and the space after them are not characters of the tune.
    tokens = uf.Tokens(torch.zeros(1, head.dim, len(ids) - 1), torch.ones(1, len(ids) - 1).bool(), ids[None, None, 1:])
    (score,) = head.evaluate(tokens, ids[None, 1:])
    assert score.characters == len(example.input.split("> ")[-1])
