"""The module in training: one trunk for all tasks, weights of losses, clipping, the clock, scores and checkpoints."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from unifier import ClassificationHead, Network, TaggingHead, Transformer, TranslationHead
from unifier.data.dataloader import Batch, collate
from unifier.data.encoding import EncodedSplit
from unifier.datasets import Digits, GrammarPairs, SyntheticMusic
from unifier.experiment import Experiment, LossWeighting, Task, Training
from unifier.training import lightning_module
from unifier.training.lightning_module import UnifierModule
from unifier_tokenizers import FrameTokenizer, PatchTokenizer, SubwordTokenizer, Tokens, Vocabulary

D = 16
PAIRS = GrammarPairs(train=40, val=4, test=4)
MUSIC = SyntheticMusic(train=8, val=4, test=4, seconds=1.0, target="tags")


def text(r_drop: float = 0.0) -> Task:
    vocabulary = Vocabulary.fit((text for pair in PAIRS.split("train") for text in pair), size=300)
    head = TranslationHead(vocabulary, D, depth=1, heads=2, ffn_dim=16, r_drop=r_drop)
    return Task(PAIRS, SubwordTokenizer(vocabulary, D), head)


def digits() -> Task:
    return Task(Digits(), PatchTokenizer(D, channels=1), ClassificationHead(Digits.labels, D))


def music() -> Task:
    return Task(MUSIC, FrameTokenizer(D, sample_rate=8000, stack=4), TaggingHead(MUSIC.labels, D))


TASKS = {"text": text, "digits": digits, "music": music}


def build(*names: str, seed: int = 0, dropout: float = 0.0, **training: Any) -> Experiment:
    pl.seed_everything(seed, verbose=False)
    trunk = Transformer(D, 1, 2, 16, dropout=dropout)
    return Experiment(trunk, {name: TASKS[name]() for name in names}, Training(steps=1, **training))


Encode = Callable[..., dict[str, EncodedSplit]]
Patch = pytest.MonkeyPatch


def move(model: UnifierModule, task: str, split: EncodedSplit) -> tuple[str, Batch]:
    """Return the first five examples as the trainer gives them to a step."""
    return model.transfer_batch_to_device((task, collate(split, range(5))), model.device, 0)


def test_trunk_depends_on_the_seed_alone() -> None:
    first = build("text").trunk.state_dict()
    for names in (("digits",), ("music",), ("music", "text", "digits")):
        other = build(*names).trunk.state_dict()
        assert list(other) == list(first)
        assert all(torch.equal(first[part], other[part]) for part in first), names
    assert any(not torch.equal(part, first[name]) for name, part in build("text", seed=1).trunk.state_dict().items())


def test_every_task_trains_the_trunk_alone(encode: Encode) -> None:
    experiment = build(*TASKS)
    model = UnifierModule(experiment)
    for task, split in encode(experiment.tasks).items():
        model.zero_grad()
        model.loss(task, collate(split, range(4))).backward()
        for name, parameter in model.trunk.named_parameters():
            assert parameter.grad is not None, name
            if name != "blocks.0.attention.key_value.bias":  # A bias of all keys does not change the softmax.
                assert parameter.grad.abs().sum() > 0, f"{task} does not train {name}"
        for other in set(experiment.tasks) - {task}:
            gradients = [parameter.grad for parameter in model.heads[other].parameters()]
            assert all(gradient is None or not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("name", ["text", "music"])
@torch.no_grad()
def test_padding_changes_no_features(name: str, encode: Encode) -> None:
    experiment = build(name)
    model = UnifierModule(experiment).eval()
    split = encode(experiment.tasks, count=3)[name]
    together = model.forward_features(name, collate(split, range(3)))
    for row in range(3):
        alone = model.forward_features(name, collate(split, [row])).matrix[0]
        torch.testing.assert_close(together.matrix[row, :, : alone.shape[1]], alone, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_predictions_of_views_are_averaged(encode: Encode) -> None:
    experiment = build("digits")
    whole = collate(encode(experiment.tasks)["digits"], range(5))

    def views(batch: Batch) -> list[Batch]:
        """Return all examples, and the last two a second time in black."""
        part = Batch(*(tensor[3:] for tensor in batch))
        return [batch, part._replace(values=part.values * 0)]

    def predict(tta: Any, batch: Batch) -> Tensor:
        tasks = {"digits": replace(experiment.tasks["digits"], tta=tta)}
        model = UnifierModule(replace(experiment, tasks=tasks)).eval()
        model.validation_step(("digits", batch), 0)
        assert list(model.predictions["digits"]) == list(range(5))
        return torch.stack(list(model.predictions["digits"].values()))

    plain, black = predict(None, whole), predict(None, whole._replace(values=whole.values * 0))
    expected = torch.cat([plain[:3], (plain[3:] + black[3:]) / 2])
    torch.testing.assert_close(predict(views, whole), expected)


@pytest.mark.slow
# torch warns of itself while it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
@pytest.mark.parametrize("name", TASKS)
def test_only_the_training_loss_is_compiled(name: str, encode: Encode, monkeypatch: Patch) -> None:
    modes, trace = list[str](), partial(torch.compile, backend="aot_eager")  # It traces, and generates no code.

    def compile_traced(function: Callable[..., Tensor], *, mode: str) -> Callable[..., Tensor]:
        traced = trace(function)
        return lambda *given: modes.append(mode) or traced(*given)

    monkeypatch.setattr(torch, "compile", compile_traced)
    gradients: list[Tensor] = []
    for mode in (None, "reduce-overhead"):
        experiment = build(name, compile=mode)
        model, split = UnifierModule(experiment), encode(experiment.tasks)[name]
        model.prepare({name: split})
        model.training_step(move(model, name, split), 0).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        model.eval().validation_step((name, collate(split, range(5))), 0)
        assert modes == ([] if mode is None else [mode])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("names", [("digits",), ("digits", "music")], ids=len)
def test_clock_waits_for_accelerator_if_needed(names: tuple[str, ...], monkeypatch: Patch) -> None:
    model, time, waits = UnifierModule(build(*names)), [0.0], list[float]()
    model.current_task = "digits"

    def synchronize() -> None:
        waits.append(time[0])
        time[0] += 10.0

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    monkeypatch.setattr(lightning_module.time, "perf_counter", lambda: time[0])
    for device, steps, validations in (("cpu", 0, 0), ("cuda:0", 3 if len(names) > 1 else 0, 1)):
        monkeypatch.setattr(model, "_device", torch.device(device))
        model.on_train_batch_start(("digits", Batch(*[torch.empty(0)] * 5)), 0)
        for _ in range(3):
            model.on_after_backward()
        assert len(waits) == steps, "several tasks need the time of each"
        before = model.cost_tracker.total().seconds
        model.on_validation_epoch_start()
        model.on_validation_epoch_start()  # The second one is that of the best weights; the clock does not run.
        assert len(waits) == steps + validations
        assert model.cost_tracker.total().seconds - before == 10.0 * validations


def test_second_pass_of_r_drop_shares_memory(encode: Encode) -> None:
    experiment = replace(build("text"), tasks={"text": text(r_drop=1.0)})
    network, batch = Network.from_experiment(experiment), collate(encode(experiment.tasks)["text"], [0, 0, 0])
    seen = list[Tokens]()
    network.trunk.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network.train().loss("text", batch.to(torch.device("cpu")))
    assert [len(tokens.mask) for tokens in seen] == [6]
    assert seen[0].mask.stride() == (0, 0)
    assert seen[0].positions.stride(0) == 0


def test_losses_survive_reused_output_memory(encode: Encode) -> None:
    """A CUDA graph returns its output in the same memory each time."""
    experiment, output = build("digits"), torch.zeros(())
    model, split = UnifierModule(experiment), encode(experiment.tasks)["digits"]
    model.prepare({"digits": split})
    model.training_loss = lambda task, batch: output.add_(1)
    for _ in range(3):
        model.training_step(move(model, "digits", split), 0)
    assert [loss.item() for loss in model.losses["digits"]] == [1, 2, 3]


def test_weighted_loss() -> None:
    for weighting, expected in (("fixed", 5.1), ("uncertainty", 3 * (1.7 * math.exp(-0.7) + 0.35))):
        experiment = build("digits", loss_weighting=weighting)
        model = UnifierModule(replace(experiment, tasks={"digits": replace(digits(), loss_weight=3.0)}))
        for variance in model.log_variances.values():
            variance.data.fill_(0.7)
        assert model.weighted_loss("digits", torch.tensor(1.7)).item() == pytest.approx(expected)


def gradient_norm(model: nn.Module) -> float:
    return float(nn.utils.get_total_norm(part.grad for part in model.parameters() if part.grad is not None))


@pytest.mark.parametrize(("norm", "clipped"), [(100.0, 2.5), (1.5, 1.5)])
def test_gradient_is_clipped_to_grad_clip(norm: float, clipped: float) -> None:
    model = UnifierModule(build("digits", grad_clip=2.5))
    size = sum(map(torch.numel, model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, norm / math.sqrt(size))
    model.cost_tracker.count("digits", torch.ones(1), 1)
    model.configure_gradient_clipping(None)
    assert gradient_norm(model) == pytest.approx(clipped, rel=1e-3)


@pytest.mark.parametrize(("weighting", "ratio"), [("fixed", 8), ("uncertainty", 4)])
def test_clipped_gradients_keep_the_loss_weights(weighting: LossWeighting, ratio: float, encode: Encode) -> None:
    tasks = {"a": replace(digits(), loss_weight=8.0), "b": digits()}
    experiment = replace(build("digits", grad_clip=1e-3, loss_weighting=weighting), tasks=tasks)
    model = UnifierModule(experiment)
    for task, variance in zip(model.log_variances, (math.log(2), 0.0), strict=False):
        model.log_variances[task].data.fill_(variance)
    norms: list[float] = []
    for task, split in encode(tasks).items():
        model.zero_grad()
        model.cost_tracker.count(task, torch.ones(1), 1)
        model.weighted_loss(task, model.loss(task, collate(split, range(5)))).backward()
        model.configure_gradient_clipping(None)
        model.cost_tracker.step()
        norms.append(gradient_norm(model))
    assert norms[0] / norms[1] == pytest.approx(ratio, rel=1e-2)


@pytest.mark.parametrize(("area", "score"), [(0.8, 60.0), (math.nan, 40.0)], ids=["number", "nan"])
def test_validation_score_is_mean_percentage(area: float, score: float, monkeypatch: Patch) -> None:
    model = UnifierModule(build("digits", "music"))
    for task, metrics in (("digits", {"accuracy": 40.0}), ("music", {"macro_auc": area})):
        monkeypatch.setattr(model.tasks[task].head, "metrics", lambda *_, metrics=metrics: metrics)
        model.predictions[task], model.targets[task, "val"] = {0: None}, {0: None}
    for name in ("log", "log_dict"):
        monkeypatch.setattr(model, name, lambda *_: None)
    model.on_validation_epoch_end()
    assert model.score == pytest.approx(score)


def test_checkpoint_restores_accelerator_random_state(monkeypatch: Patch) -> None:
    first, second, without = (UnifierModule(build("digits")) for _ in range(3))
    new, restored = first.configure_optimizers(), list[Tensor]()
    checkpoint: dict[str, Any] = {"global_step": 3, "callbacks": {}, "loops": {"fit_loop": {}}}
    checkpoint["lr_schedulers"] = [new["lr_scheduler"]["scheduler"].state_dict()]
    loop = SimpleNamespace(state_dict=dict)
    trainer = SimpleNamespace(callbacks=[], fit_loop=loop, optimizers=[new["optimizer"]])
    monkeypatch.setattr(UnifierModule, "trainer", trainer)
    for model in (first, second):
        monkeypatch.setattr(model, "_device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    first.on_save_checkpoint(checkpoint)
    for model in (second, without):  # The run resumes on an accelerator and on a CPU.
        model.on_load_checkpoint(checkpoint)
        model.on_train_start()
    assert restored == [torch.tensor([7])]


def test_total_steps_follow_the_speed() -> None:
    model = UnifierModule(replace(build("digits"), training=Training(seconds=60)))
    assert model.total_steps == lightning_module.INITIAL_TOTAL_STEPS
    model.cost_tracker.steps, model.cost_tracker.tasks["digits"].seconds = 5, 20.0
    assert model.total_steps == 15
    model.cost_tracker.tasks["digits"].seconds = 70.0
    assert model.total_steps == 6, "there is a next step until the budget has ended"
