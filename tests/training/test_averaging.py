"""Means of the weights: scored and kept, while training goes on as without them."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from unifier.experiment import Training
from unifier.training.callbacks import WeightAveraging
from unifier_tokenizers import InputError

STEPS, EACH = 12, 4

pytestmark = [  # Lightning's own, which a run does not meet or silences
    pytest.mark.filterwarnings("ignore:.*does not have many num_workers", "ignore:.*LeafSpec")
]


class Counting(pl.LightningModule):
    """Its weight after step t is t squared, and its score the weight that a validation saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.fixed = nn.Parameter(torch.tensor(0.1), requires_grad=False)
        self.seen: list[float] = []
        self.trained: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.trained.append(self.weight.item())
        return -self.weight * (2 * batch_idx + 1)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.seen.append(self.weight.item())
        self.log("score", self.weight)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.weight], lr=1.0)


def fitted(folder: Path, averaging: WeightAveraging) -> Counting:
    model = Counting()
    best = ModelCheckpoint(folder, filename="best", monitor="score", mode="max")
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        val_check_interval=EACH,
        callbacks=[averaging, best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    steps, once = (DataLoader(TensorDataset(torch.zeros(count))) for count in (STEPS, 1))
    trainer.fit(model, steps, once)
    return model


@pytest.mark.parametrize(
    "averaging", [WeightAveraging(), WeightAveraging(num_validations=2), WeightAveraging(decay=0.5)]
)
def test_training_goes_on_from_the_weights_themselves(averaging: WeightAveraging, tmp_path: Path) -> None:
    model = fitted(tmp_path, averaging)
    assert model.trained == [step**2 for step in range(STEPS)]
    kept = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    assert kept["weight"].item() == model.seen[-1]
    assert torch.equal(kept["fixed"], torch.tensor(0.1))


def test_the_last_validations_weights_are_averaged(tmp_path: Path) -> None:
    at = [float(step**2) for step in range(EACH, STEPS + 1, EACH)]
    assert fitted(tmp_path, WeightAveraging(num_validations=2)).seen == [
        at[0],
        (at[0] + at[1]) / 2,
        (at[1] + at[2]) / 2,
    ]


def test_the_exponential_mean_is_torchs_once_warm(tmp_path: Path) -> None:
    decay = 0.1  # below 1 / 10, with which the first step weighs what came before it
    reference = AveragedModel(nn.Linear(1, 1, bias=False), avg_fn=get_ema_avg_fn(decay))
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            part = nn.Linear(1, 1, bias=False)
            part.weight.fill_(step**2)
        reference.update_parameters(part)
    assert fitted(tmp_path, WeightAveraging(decay=decay)).seen[-1] == pytest.approx(next(reference.parameters()).item())


def test_a_short_runs_mean_is_not_its_first_weights(tmp_path: Path) -> None:
    late = fitted(tmp_path, WeightAveraging(decay=0.9999)).seen[-1]
    assert STEPS**2 / 4 < late < STEPS**2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ema_decay": 1.0}, "ema_decay=1.0: a number from 0 to below 1"),
        ({"ema_decay": 0.9, "average_last": 2}, "averaged in one way"),
        ({"average_last": 0}, "average_last=0: at least 1"),
        ({"grad_accumulation": 0}, "grad_accumulation=0: at least 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Training(steps=1, **settings)
