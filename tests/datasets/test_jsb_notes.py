"""Chorales note by note: the splits of the file, transposed voices, and the loss of a plain count."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

import unifier as uf
from unifier.augmentation import TransposeVoices
from unifier.data.dataloader import collate
from unifier.data.encoding import encode_split
from unifier.data.source import SPLITS, Example
from unifier.datasets import jsb_notes
from unifier.datasets.jsb_notes import JSB_FILE, JSBNotes
from unifier_tokenizers import InputError, VoiceTokenizer
from unifier_tokenizers.voices import BEGIN_PIECE

PIECES = {
    "train": [[[72, 67, np.nan, 48], [72, 67, 64, 48], [71, 65, 62, 43]], [[60, 60, 60, 60]]],
    "valid": [[[36, np.nan, 50, 81]]],
    "test": [[[60, 55, 52, 48]] * 2],
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JSBNotes:
    parts = {name: np.empty(len(pieces), object) for name, pieces in PIECES.items()}
    for name, pieces in PIECES.items():
        parts[name][:] = [np.array(piece, np.float16) for piece in pieces]
    np.savez(tmp_path / JSB_FILE, train=parts["train"], valid=parts["valid"], test=parts["test"])
    own = sha256((tmp_path / JSB_FILE).read_bytes()).hexdigest()
    monkeypatch.setitem(jsb_notes.JSB_FILES, JSB_FILE, jsb_notes.JSB_FILES[JSB_FILE]._replace(sha256=own))
    return JSBNotes(data=tmp_path)


def test_splits_are_those_of_the_file(source: JSBNotes, tmp_path: Path) -> None:
    for name, pieces in zip(SPLITS, PIECES.values(), strict=True):
        expected = [[[None if np.isnan(note) else note for note in step] for step in piece] for piece in pieces]
        assert [example.input for example in source.split(name)] == expected
    with (tmp_path / JSB_FILE).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=f"{JSB_FILE}.*SHA-256"):
        JSBNotes(data=tmp_path).split("train")
    with pytest.raises(InputError, match=JSB_FILE):
        JSBNotes(data=tmp_path / "none").split("train")


@pytest.mark.parametrize("seed", range(5))
def test_transposed_voices_move_by_one_interval(source: JSBNotes, seed: int) -> None:
    tokenizer = VoiceTokenizer(8)
    split, _ = encode_split(
        [*source.split("train"), Example([[21, 21, 108, 108]], None)], tokenizer, uf.LanguageModelingHead(89, 8)
    )
    batch = collate(split, range(3))
    moved = TransposeVoices(3)(batch, torch.Generator().manual_seed(seed)).values
    is_note = (batch.values > 0) & (batch.values < BEGIN_PIECE) & batch.mask
    assert torch.equal(moved[~is_note], batch.values[~is_note])
    for before, after, notes in zip(batch.values, moved, is_note, strict=True):
        (shift,) = (after - before)[notes].unique().tolist()
        assert -3 <= shift <= 3
    assert torch.equal(moved[2], batch.values[2])
    with pytest.raises(InputError, match="semitones=0"):
        TransposeVoices(0)


def test_each_note_is_scored_once_and_padding_never(source: JSBNotes) -> None:
    tokenizer, head = VoiceTokenizer(8), uf.LanguageModelingHead(VoiceTokenizer.num_ids, 8, unit="note")
    torch.nn.init.normal_(head.output.weight)
    split, _ = encode_split(source.split("train"), tokenizer, head)
    batch = uf.NextToken()(collate(split, range(2)), [torch.Generator()] * 2)
    together = head.evaluate(batch.embed(tokenizer), batch.target)
    assert [score.tokens for score in together] == [4 * len(piece) for piece in PIECES["train"]]
    plain: list[float] = []
    for example, score in zip(source.split("train"), together, strict=True):
        ids, positions = tokenizer.encode(example.input)
        tokens = tokenizer.embed(ids[None, :-1], positions[None, :, :-1])[0]
        losses = -(tokens.T @ head.output.weight.T).log_softmax(1)[range(len(ids) - 1), ids[1:]]
        assert score.nats == pytest.approx(losses.sum().item(), rel=1e-4)
        plain += losses.tolist()
    metrics = head.checked_metrics(together, [None] * 2)
    assert metrics["nats_per_note"] == pytest.approx(np.mean(plain), rel=1e-4)
    assert metrics["bits_per_note"] == pytest.approx(np.mean(plain) / np.log(2), rel=1e-4)
