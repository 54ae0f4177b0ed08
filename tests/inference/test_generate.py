"""Generated texts: the cache against a plain forward pass, seeds, long texts, prompts, and the command."""

from pathlib import Path
from typing import Any

import pytest
import torch

import unifier as uf
from unifier.cli import main
from unifier.data.inputs import TextReader
from unifier.files import to_json
from unifier.inference.generate import CachedDecoder, GenerationOptions, encode_prompt, generate
from unifier.inference.model import Model
from unifier.models.card import write_card
from unifier.models.folder import ModelTask, StoredModel, write_model
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary
from unifier_tokenizers.subwords import BOS, Level

TEXT = "to be or not to be, that is the question: café"
CODES = ("<jig>", "<G>")
OPTIONS = GenerationOptions(tokens=40)


def make_stored(
    level: Level = "character",
    positions: Any = "none",
    trunk: Trunk | None = None,
    codes: tuple[str, ...] = (),
    **given: Any,
) -> StoredModel:
    vocabulary = Vocabulary.fit([TEXT], level=level, extra=codes)
    torch.manual_seed(0)
    trunk = trunk or uf.Transformer(16, 2, 2, 32, rotary=positions == "none")
    options: dict[str, Any] = {"positions": positions, "length": 12, "begin": True, **given}
    tokenizer = SubwordTokenizer(vocabulary, 16, **options)
    head = uf.LanguageModelingHead(len(vocabulary), 16, vocabulary=vocabulary, context=12)
    torch.nn.init.normal_(head.output.weight)
    task = ModelTask(tokenizer, head, TextReader(), 12, objective=uf.NextToken())
    data = {"name": "t", "sha256": "0", **dict.fromkeys(("train", "val", "test"), 1), "skipped": {}}
    names = ("scores", "intervals", "parameters", "settings", "versions", "budget")
    facts: dict[str, Any] = {name: {} for name in names}
    facts |= {"data": {"text": data}, "seed": 0, "lineage": {}}
    return StoredModel("lines", trunk, {"text": task}, 64, to_json(facts))


def make_model(**given: Any) -> Model:
    return Model(make_stored(**given), Path("nowhere"))


def text_of(model: Model, prompt: str = "", **options: Any) -> str:
    return "".join(generate(model, "text", prompt, GenerationOptions(**{"tokens": 40, **options})))


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoid"])
def test_cached_equals_uncached(positions: str) -> None:
    """A long text restarts from the second half of the context, so its positions never exceed those of training."""
    model = make_model(positions=positions)
    decoder, task = CachedDecoder(model, "text"), model.tasks["text"]
    ids = [BOS, *decoder.tokenizer.vocabulary.encode_start(TEXT)]
    read: list[int] = []
    for part in (ids[:5], *([i] for i in ids[5:])):
        logs = decoder.extend(part)
        read = [*read, *part] if len(read) + len(part) <= 12 else [*read, *part][-6:]
        assert decoder.cached.values is not None
        assert decoder.cached.values.tolist() == [read]
        batch = uf.Batch(
            torch.tensor([read]), torch.arange(len(read))[None, None], torch.ones(1, len(read)).bool(), torch.zeros(1)
        )
        with torch.no_grad():
            hidden = model.network.forward_features("text", batch).matrix[:, :, -1]
        logits = hidden @ task.head.output.weight.T  # pyright: ignore[reportAttributeAccessIssue, reportOperatorIssue]
        logits[:, [0, 1, 2]] = -torch.inf
        torch.testing.assert_close(logs, logits.log_softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_equal_seeds_give_equal_texts() -> None:
    model = make_model(end=False)
    first = text_of(model, "to be")
    assert first.startswith("to be")
    assert first == text_of(model, "to be") != text_of(model, "to be", seed=1)
    greedy = text_of(model, "to be", top_k=1)
    assert greedy == text_of(model, "to be", top_k=1, seed=7) == text_of(model, "to be", temperature=1e-9)
    assert greedy == text_of(model, "to be", top_p=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["bpe", "word"])
def test_parts_join_to_the_text_of_the_ids(level: Level) -> None:
    model = make_model(level=level, end=False)
    vocabulary = CachedDecoder(model, "text").tokenizer.vocabulary
    parts = list(generate(model, "text", "to be", OPTIONS))
    assert len(parts) > 10
    decoder, ids = CachedDecoder(model, "text"), [BOS, *vocabulary.encode_start("to be")]
    new, generator = ids, torch.Generator().manual_seed(0)
    for _ in range(40):
        probabilities, order = decoder.extend(new).exp().sort(descending=True, stable=True)
        drawn = (probabilities.cumsum(1) < torch.rand((), generator=generator) * probabilities.sum()).sum()
        new = [int(order[0, drawn])]
        ids += new
    text = vocabulary.decode(ids)
    assert "".join(parts).replace("\ufffd", "") == text.replace("\ufffd", "")


@pytest.mark.parametrize(
    ("prompt", "given", "options", "message"),
    [
        ("to €", {}, {}, "'€'"),
        ("to fly", {"level": "word"}, {}, "'to fly'"),
        ("", {"begin": False}, {}, "empty"),
        ("\ud800", {}, {}, "Unicode"),
        ("to", {"trunk": uf.create_trunk("gru", 16, 1)}, {}, "RecurrentTrunk"),
        ("to", {}, {"temperature": 0.0}, "temperature=0"),
        ("to", {}, {"top_k": 0}, "top_k=0"),
        ("to", {}, {"top_p": 1.5}, r"top_p=1\.5"),
        ("to", {}, {"tokens": 0}, "tokens=0"),
        ("to", {}, {"seed": -1}, "seed=-1"),
        ("<jig> <D> to", {"codes": CODES}, {}, "no code <D>: use <jig> <G>"),
    ],
)
def test_unusable_input_is_named_in_a_line(
    prompt: str, given: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        text_of(make_model(**given), prompt, **options)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_codes_in_a_prompt_are_entries() -> None:
    model = make_model(codes=CODES, end=False)
    decoder = CachedDecoder(model, "text")
    ids = encode_prompt(decoder.tokenizer, "<jig> <G> to")
    assert ids == [BOS, *map(decoder.tokenizer.vocabulary.extra.get, CODES), *ids[3:]]
    assert decoder.tokenizer.vocabulary.decode(ids[3:]) == "to"
    assert text_of(model, "<jig><G> to", seed=2)[12:] == text_of(model, "<jig> <G> to", seed=2)[13:]
    assert text_of(model, "<jig> <G> to", seed=2)[12:] != text_of(model, "<G> to", seed=2)[6:]


@pytest.mark.slow
def test_long_prompt_is_read_from_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(end=False)
    assert text_of(model, TEXT[-30:], seed=3)[30:] == text_of(model, TEXT[-20:], seed=3)[20:]
    assert "last 12" in capsys.readouterr().err


def test_command_prints_the_continuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = make_stored(end=False)
    write_model(tmp_path / "model", stored, write_card(stored))
    assert main(["generate", str(tmp_path / "model"), "to be", "--tokens", "9", "--seed", "3"]) == 0
    assert capsys.readouterr().out == text_of(Model(stored, tmp_path), "to be", tokens=9, seed=3) + "\n"
    assert main(["generate", str(tmp_path / "model"), "to €"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
