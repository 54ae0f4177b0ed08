"""The next id of each token is its target, and pieces of a long text predict each of its tokens once."""

from pathlib import Path

import pytest
import torch

from unifier.augmentation import RandomWindow
from unifier.data.dataloader import EvalDataLoader, TrainDataLoader, collate
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import SPLITS, SplitName
from unifier.datasets import LongTextFile, TextPieces
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.objectives.next_token import NextToken
from unifier_tokenizers import InputError, SubwordTokenizer, Units, Vocabulary
from unifier_tokenizers.subwords import BOS, Level

TEXT = "".join(f"{k} mice met a café's {k % 7} cats.\n" for k in range(60))
ROWS = [torch.arange(4, 9), torch.arange(20, 22)]
SPLIT = EncodedSplit([Units(ids, torch.arange(len(ids))[None]) for ids in ROWS], [torch.tensor(0)] * 2, range(2))


def test_target_is_the_next_id() -> None:
    ((_, batch),) = EvalDataLoader({"a": SPLIT}, max_tokens=100, objectives={"a": NextToken()})
    for values, positions, mask, target, index in zip(*batch, strict=True):
        ids = ROWS[int(index)]
        assert values[mask].tolist() == ids[:-1].tolist()
        assert positions[0, mask].tolist() == list(range(len(ids) - 1))
        assert target[mask].tolist() == ids[1:].tolist()
        assert set(target[~mask].tolist()) <= {IGNORE_INDEX}
    assert NextToken().planned_lengths(SPLIT.lengths()).tolist() == [[4, 4], [1, 1]]


@pytest.mark.parametrize(("values", "message"), [(torch.zeros(3, 5), "ids"), (torch.tensor([4]), "single token")])
def test_other_inputs_are_refused(values: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NextToken().check(Units(values, torch.arange(values.shape[-1])[None]))


@pytest.fixture
def source(tmp_path: Path) -> LongTextFile:
    (tmp_path / "mice.txt").write_text(TEXT)
    return LongTextFile(tmp_path / "mice.txt")


@pytest.mark.parametrize("level", ["character", "byte", "bpe"])
def test_pieces_predict_each_token_once(level: Level, source: LongTextFile) -> None:
    vocabulary = Vocabulary.fit([TEXT], level=level)
    tokenizer, texts = SubwordTokenizer(vocabulary, 8, begin=True, end=False), dict[SplitName, str]()
    head = LanguageModelingHead(len(vocabulary), 8, vocabulary=vocabulary)
    for name in SPLITS:
        (text,) = [example.input for example in source.split(name)]
        examples = TextPieces(source, vocabulary, 7, stream=True).split(name)
        split, _ = encode_split(examples, tokenizer, head)
        batch = NextToken()(collate(split, range(len(split))), [])
        whole = [BOS, *vocabulary.encode_start(text)]
        assert batch.target[batch.mask].tolist() == whole[1:]
        assert batch.values[batch.mask].tolist() == whole[:-1]
        assert batch.mask.sum(1).max() == 7
        texts[name] = "".join(str(example.target) for example in examples)
        assert texts[name].removeprefix(" ") == text
        assert sum(map(head._num_characters, [t[t >= 0].tolist() for t in batch.target])) == len(texts[name])  # pyright: ignore[reportPrivateUsage]
    assert "".join(text.removeprefix(" ") for text in texts.values()) == TEXT


def test_training_reads_random_windows_of_longer_pieces(source: LongTextFile) -> None:
    vocabulary = Vocabulary.fit([TEXT], level="character")
    tokenizer = SubwordTokenizer(vocabulary, 8, positions="learned", length=8, begin=True, end=False)
    examples = TextPieces(source, vocabulary, 7).split("train")
    assert {len(example.input.ids) for example in examples[:-2]} == {15}
    wide = SubwordTokenizer(vocabulary, 8, begin=True, end=False)
    split, _ = encode_split(examples, wide, LanguageModelingHead(len(vocabulary), 8))
    loader = TrainDataLoader(
        {"a": split},
        max_tokens=70,
        seed=0,
        budget={"epochs": 2.0},
        augment={"a": RandomWindow(8)},
        objectives={"a": NextToken()},
    )
    texts = set[str]()
    for _, batch in loader:
        for ids, positions, mask, target in zip(*batch[:4], strict=True):
            text = vocabulary.codec.decode([*ids[mask].tolist(), int(target[mask][-1])], skip_special_tokens=False)
            assert text in TEXT
            assert positions[0, mask].tolist() == list(range(int(mask.sum())))
            assert mask.sum() <= 7
            texts.add(text)
    fixed = {TEXT[k : k + 8] for k in range(6, len(TEXT), 7)}
    assert len(texts - fixed) > len(texts) / 2
    with pytest.raises(InputError, match="15 positions"):
        tokenizer.encode(examples[0].input)


@pytest.mark.parametrize(("content", "message"), [(b"", "no text"), (b"\xff\xfeab", "UTF-8"), (b"abc", "3 characters")])
def test_unusable_text_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"own\.txt.*{message}") as error:
        LongTextFile(tmp_path / "own.txt").split("val")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="length=1"):
        TextPieces(LongTextFile(tmp_path / "own.txt"), Vocabulary.fit(["a"]), 1)
