"""The translator of a run: its alignments, and the runs that it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch

from unifier.config import load_experiment
from unifier.heads.transformer_decoder import TranslationHead
from unifier.inference.translator import Translator
from unifier.launch import run_in_folder
from unifier_tokenizers import InputError, Tokens

pytestmark = pytest.mark.usefixtures("undrawn")


def test_alignment_is_the_mean_over_heads(translator: Translator) -> None:
    head, ids = translator.head, torch.tensor([[5, 6, 7], [8, 5, 5]])
    assert isinstance(head, TranslationHead)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    tokens = Tokens(torch.randn(2, 32, 4), mask, torch.arange(4).expand(2, 1, 4))
    weights: list[torch.Tensor] = []
    head.hidden_states(tokens, torch.tensor([[2, 5, 6, 7], [2, 8, 5, 5]]), weights=weights)
    torch.testing.assert_close(head.alignment(tokens, ids), torch.stack(weights).mean((0, 2)))


@pytest.mark.slow
def test_run_of_pictures_is_refused(experiment_file: Path, tmp_path: Path) -> None:
    pictures = load_experiment(str(experiment_file.with_name("pictures.py")))
    settings = {"steps": 1, "dim": 16, "depth": 1, "batch_tokens": 256}
    options: dict[str, Any] = {"out": tmp_path, "track": "off", "tensorboard": False, "resume": None}
    _, folder = run_in_folder(pictures, settings, seed=0, **options)
    with pytest.raises(InputError, match=r"none of its tasks \(digits\)"):
        Translator(folder)
