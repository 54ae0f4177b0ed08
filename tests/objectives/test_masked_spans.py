"""Masked spans: exact numbers, one mark for each span, and a model that writes the whole text."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import unifier as uf
from unifier.cli import main
from unifier.config import load_experiment
from unifier.data.dataloader import apply_objective, collate
from unifier.data.encoding import EncodedSplit
from unifier.heads.masked_language_modeling import MASK
from unifier.objectives.masked_spans import MaskedSpans
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary
from unifier_tokenizers.subwords import EOS

WORDS = [f"w{k}" for k in range(60)]
VOCABULARY = Vocabulary.fit([" ".join(WORDS)], level="word", extra=(MASK,))
LENGTHS = (60, 47, 9, 3, 2, 1)
MASK_ID = VOCABULARY.extra[MASK]


@pytest.fixture(scope="module")
def split() -> EncodedSplit:
    tokenizer = SubwordTokenizer(VOCABULARY, 8)
    units = [tokenizer.encode(" ".join(WORDS[:length])) for length in LENGTHS]
    return EncodedSplit(units, [ids for ids, _ in units], range(len(units)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "mean_length", "hidden", "spans"),
    [(0.3, 3.0, [18, 14, 3, 1, 1, 1], [6, 5, 1, 1, 1, 1]), (0.9, 1.0, [54, 42, 8, 2, 1, 1], [7, 6, 2, 2, 1, 1])],
)
def test_spans_are_exact_and_apart(
    share: float, mean_length: float, hidden: list[int], spans: list[int], split: EncodedSplit
) -> None:
    objective = MaskedSpans(VOCABULARY, share, mean_length=mean_length)
    before = collate(split, range(len(LENGTHS)))
    for seed in range(30):
        after = apply_objective(objective, before, seed)
        assert torch.equal(after.target, before.target)
        assert after.mask.sum(1).tolist() == objective.planned_lengths(split.lengths())[:, 0].tolist()
        for row, length in enumerate(LENGTHS):
            ids = after.values[row, after.mask[row]].tolist()
            assert after.positions[row, 0, after.mask[row]].tolist() == list(range(len(ids)))
            words, marks = [i for i in ids if i != MASK_ID], [n for n, i in enumerate(ids) if i == MASK_ID]
            assert (ids[-1], len(marks), length + 1 - len(words)) == (EOS, spans[row], hidden[row])
            assert all(other - mark > 1 for mark, other in pairwise(marks))
            original = before.values[row, : length + 1].tolist()
            assert words == [i for i in original if i in words], "the shown words keep their order"
            # Each mark stands for at least one word.
            for mark in marks:
                left = original.index(ids[mark - 1]) if mark else -1
                assert original.index(ids[mark + 1]) - left > 1
            alone = apply_objective(objective, collate(split, [row]), seed)
            assert alone.values[0].tolist() == ids


@pytest.mark.slow
def test_every_place_may_be_hidden(split: EncodedSplit) -> None:
    objective, shown = MaskedSpans(VOCABULARY), torch.zeros(len(VOCABULARY))
    for seed in range(400):
        shown[apply_objective(objective, collate(split, [2]), seed).values[0]] += 1
    places = shown[VOCABULARY.encode(" ".join(WORDS[:9]))] / 400
    assert places.mean().item() == pytest.approx(6 / 9)
    assert places.min() > 0.5
    assert places.max() < 0.9


@pytest.mark.parametrize(
    "settings", [{"share": 0.0}, {"share": 1.0}, {"mean_length": 0.5}, {"mean_length": float("nan")}]
)
def test_spans_that_hide_nothing_or_everything_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        MaskedSpans(VOCABULARY, **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_recipe_writes_texts_and_a_translator_starts_from_it(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("\n".join(f"note {k} of {k % 7} dogs and {k % 5} cats" for k in range(60)))
    small: dict[str, Any] = {"vocabulary": 290, "dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16}
    given: dict[str, Any] = {"steps": 2, "num_validations": 1, "out": tmp_path, "track": "off"}
    [result] = uf.run(load_experiment("pretrain"), data=str(notes), objective="spans", piece_words=8, **small, **given)
    assert result.metrics["test/notes/bleu"] >= 0
    assert len(uf.load(result.folder).predict(["note <mask> dogs"])) == 1
    assert main(["evaluate", str(result.folder), str(notes), "--out", str(tmp_path / "scores")]) == 0
    (tmp_path / "pairs.tsv").write_text("".join(f"{k} dogs\t{k} chiens\n" for k in range(40)))
    pairs: dict[str, Any] = {"data": str(tmp_path / "pairs.tsv"), "decoder_depth": 1, "beam_width": 1}
    [translator] = uf.run(
        load_experiment("translation"), **pairs, start=str(result.folder), **small, **given,
        qk_norm=False, scaled_residual_init=False,
    )  # fmt: skip
    assert translator.lineage["tokenizers"] == ["en-fr"]
