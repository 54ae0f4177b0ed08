"""Language models with a memory: each token is scored once with its complete context, and runs resume bit for bit."""

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import unifier as uf
from unifier.data.dataloader import Batch
from unifier.datasets import TextPieces
from unifier.training.fit import fit
from unifier.training.result import Interrupted
from unifier.training.run_context import RunContext
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

D = 16


class Tales:
    """A few texts of different lengths."""

    name = "tales"

    def split(self, name: str) -> list[uf.Example]:
        texts = [" ".join(f"mice {n * k % 89}" for n in range(20 + 9 * k)) for k in range(8 if name == "train" else 2)]
        return [uf.Example(text, text) for text in texts]


LETTERS = uf.Vocabulary.fit((example.input for example in Tales().split("train")), level="character")


def build(memory: int = 1000, augmentation: Any = None, **training: Any) -> uf.Experiment:
    tokenizer = uf.SubwordTokenizer(LETTERS, D, positions="none", begin=True, end=False)
    head = uf.LanguageModelingHead(len(LETTERS), D, vocabulary=LETTERS, unit="character", memory=memory)
    pieces = TextPieces(Tales(), LETTERS, 32, stream=True)
    task = uf.Task(pieces, tokenizer, head, augmentation=augmentation, objective=uf.NextToken())
    settings: dict[str, Any] = {
        "steps": 12,
        "batch_tokens": 130,
        "num_validations": 3,
        "learning_rate": 0.01,
        **training,
    }
    trunk = uf.Transformer(D, 2, 2, 32, rotary=True, dropout=0.1)
    return uf.Experiment(trunk, {"tales": task}, uf.Training(**settings), name="tales")


@pytest.mark.slow
def test_scores_have_the_complete_context(tmp_path: Path) -> None:
    result = fit(build, {}, 0, RunContext(tmp_path, "study", wandb="off"))
    network = uf.load(result.folder).network.eval()
    nats, characters = 0.0, 0
    for example in Tales().split("test"):
        ids = torch.tensor([[2, *LETTERS.encode_start(example.input)]])
        positions, mask = torch.arange(ids.shape[1] - 1)[None, None], torch.ones(1, ids.shape[1] - 1, dtype=torch.bool)
        batch = Batch(ids[:, :-1], positions, mask, ids[:, 1:])
        with torch.no_grad():
            (score,) = network.tasks["tales"].head.evaluate(network.forward_features("tales", batch), batch.target)
        nats, characters = nats + score.nats, characters + score.characters
    assert characters == sum(len(example.input) for example in Tales().split("test"))
    assert result.metrics["test/tales/nats_per_character"] == pytest.approx(nats / characters, rel=1e-4)


@pytest.mark.slow
def test_interrupted_run_resumes_with_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Iterator[int] = count()
    stops = set[int]()
    loss = uf.LanguageModelingHead.loss

    def counted(self: Any, tokens: Any, target: Any) -> Any:
        if len(target) > 1 and next(calls) in stops:  # FLOPs are counted on single examples.
            os.kill(os.getpid(), signal.SIGINT)
        return loss(self, tokens, target)

    monkeypatch.setattr(uf.LanguageModelingHead, "loss", counted)
    context = RunContext(tmp_path, "study", wandb="off")
    whole = fit(build, {}, 0, context)
    calls, stops = count(), {5}
    with pytest.raises(Interrupted) as stop:
        fit(build, {}, 0, context)
    resumed = fit(build, {}, 0, context, resume=Path(str(stop.value)))
    assert resumed.metrics == whole.metrics
    weights = [torch.load(run.folder / "checkpoints/last.ckpt", weights_only=True) for run in (whole, resumed)]
    for part in ("state_dict", "streams"):
        torch.testing.assert_close(weights[1][part], weights[0][part], rtol=0, atol=0)
    assert weights[0]["streams"]["tales"][2].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": -1}, "memory=-1.*0 or more"),
        ({"augmentation": uf.augmentation.RandomWindow(8)}, "leave out augmentation"),
        ({"compile": "default"}, "compile=default"),
    ],
)
def test_impossible_memories_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**settings)
