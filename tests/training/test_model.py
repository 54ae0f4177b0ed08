"""The model: every task reads through one trunk, and a comparison's tasks start from the same one."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from unifier.config import load_experiment as find
from unifier.data.dataloader import Batch, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.experiment import Experiment, LossWeighting, Schedule, Training
from unifier.network import Network
from unifier.training.lightning_module import UnifierModule
from unifier.training.optimizers import learning_rate_factor
from unifier_tokenizers import Tokens

ROOT = Path(__file__).parents[2]

Study = Callable[..., Experiment]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Study]:
    """The repository's own experiments, on a few of their examples."""
    few = {
        "translation": ("GrammarPairs", partial(GrammarPairs, train=40, val=4, test=4)),
        "pictures": ("Digits", partial(Digits, val=800, test=900)),
        "genres": ("SyntheticMusic", partial(SyntheticMusic, train=8, val=4, test=4, seconds=1.0)),
    }

    def found(name: str) -> Study:
        function: Any = find(str(ROOT / "experiments" / f"{name}.py"))
        for part, (source, smaller) in few.items():
            module: Any = find(str(ROOT / "experiments" / f"{part}.py"))
            monkeypatch.setitem(module.__globals__, source, smaller)
        return function

    return found


def seeded(build: Study, seed: int = 0, **settings: Any) -> Experiment:
    pl.seed_everything(seed, verbose=False)
    return build(**settings)


def sent(model: UnifierModule, task: str, split: EncodedSplit) -> tuple[str, Batch]:
    """The first five examples, as the trainer hands them to a step."""
    return model.transfer_batch_to_device((task, collate(split, range(5))), model.device, 0)


def test_the_trunk_starts_the_same_whatever_the_modality(study: Callable[[str], Study]) -> None:
    def weights(name: str, seed: int = 0, **settings: bool) -> dict[str, torch.Tensor]:
        return seeded(study(name), seed, dim=16, depth=2, **settings).trunk.state_dict()

    first = weights("translation", qk_norm=False, scaled_residual_init=False)
    for name in ("pictures", "genres", "one_trunk"):
        other = weights(name)
        assert list(other) == list(first)
        assert all(torch.equal(first[part], other[part]) for part in first), name
    assert any(not torch.equal(part, first[name]) for name, part in weights("pictures", seed=1).items())


@pytest.mark.parametrize(("name", "tokenizers", "heads"), [("one_trunk", 3, 3), ("genres_and_moods", 1, 2)])
def test_all_tasks_read_through_one_trunk_and_all_of_them_train_it(
    study: Callable[[str], Study], name: str, tokenizers: int, heads: int
) -> None:
    experiment = seeded(study(name), dim=16, depth=1)
    model = UnifierModule(experiment)
    assert len({task.tokenizer for task in experiment.tasks.values()}) == tokenizers
    assert len({task.head for task in experiment.tasks.values()}) == heads
    for task, one in experiment.tasks.items():
        split, _ = encode_split(list(open_split(one.source, "train")[:4]), one.tokenizer, one.head)
        model.zero_grad()
        model.loss(task, collate(split, range(4))).backward()
        for part, parameter in model.trunk.named_parameters():
            assert parameter.grad is not None, part
            if part != "blocks.0.attention.key_value.bias":  # half of it, the keys', moves no softmax
                assert parameter.grad.abs().sum() > 0, f"{task} does not move {part}"
        others = [other for other in experiment.tasks if other != task]
        for other in others:
            assert all(
                parameter.grad is None or not parameter.grad.any() for parameter in model.heads[other].parameters()
            )


def test_a_batch_tells_of_each_example_what_it_tells_alone(study: Callable[[str], Study]) -> None:
    """Padding beside a longer example changes no prediction."""
    for name in ("translation", "genres"):
        experiment = seeded(study(name), dim=16, depth=1)
        model = UnifierModule(experiment).eval()
        ((task, one),) = experiment.tasks.items()
        examples = [*open_split(one.source, "train")[:3]]
        split, _ = encode_split(examples, one.tokenizer, one.head)
        with torch.no_grad():
            together = model.forward_features(task, collate(split, range(3)))
            for row in range(3):
                alone = model.forward_features(task, collate(split, [row]))
                n = alone.matrix.shape[2]
                torch.testing.assert_close(together.matrix[row, :, :n], alone.matrix[0], atol=1e-5, rtol=1e-4)


def test_predictions_of_an_example_s_views_are_averaged(study: Callable[[str], Study]) -> None:
    experiment = seeded(study("pictures"), dim=16, depth=1)
    ((task, one),) = experiment.tasks.items()
    split, _ = encode_split(list(open_split(one.source, "train")[:5]), one.tokenizer, one.head)
    whole = collate(split, range(5))

    def views(batch: Batch) -> list[Batch]:
        """All of them, and the last two again in the dark."""
        some = Batch(*(part[3:] for part in batch))
        return [batch, some._replace(values=some.values * 0)]

    once, model = (
        UnifierModule(replace(experiment, tasks={task: replace(one, views=seen)})).eval() for seen in (None, views)
    )
    with torch.no_grad():
        once.validation_step((task, whole), 0)
        model.validation_step((task, whole), 0)
        plain = torch.stack(list(once.predictions[task].values()))
        once.validation_step((task, whole._replace(values=whole.values * 0)), 0)
    expected = (plain + torch.stack(list(once.predictions[task].values()))) / 2
    expected[:3] = plain[:3]
    assert list(model.predictions[task]) == list(range(5))
    torch.testing.assert_close(torch.stack(list(model.predictions[task].values())), expected)


# What torch itself does as it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
@pytest.mark.parametrize(("name", "given"), [("pictures", {}), ("genres", {}), ("translation", {"r_drop": 0})])
def test_training_alone_is_compiled_and_only_where_asked(
    name: str, given: dict[str, Any], study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, trace = list[str](), partial(torch.compile, backend="aot_eager")  # all but the code that would be written

    def compiled(function: Callable[..., torch.Tensor], *, mode: str) -> Callable[..., torch.Tensor]:
        traced = trace(function)
        return lambda *given: ran.append(mode) or traced(*given)

    monkeypatch.setattr(torch, "compile", compiled)
    gradients: list[torch.Tensor] = []
    for asked in (None, "reduce-overhead"):
        experiment = seeded(study(name), dim=16, depth=1, dropout=0, compile=asked, **given)
        model, ((task, one),) = UnifierModule(experiment), experiment.tasks.items()
        split, _ = encode_split(list(open_split(one.source, "train")[:5]), one.tokenizer, one.head)
        model.prepare({task: split})
        model.training_step(sent(model, task, split), 0).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))  # pyright: ignore
        model.eval().validation_step((task, collate(split, range(5))), 0)
        assert ran == ([] if asked is None else [asked])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("together", [False, True])
def test_the_clock_waits_for_an_accelerator_before_a_validation_and_between_tasks(
    together: bool, study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = UnifierModule(seeded(study("genres_and_moods" if together else "pictures"), dim=16, depth=1))
    model.turn, waited = next(iter(model.tasks)), list[float]()

    def synchronize() -> None:
        waited.append(time.perf_counter())
        time.sleep(0.01)

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    for device, steps, validations in (("cpu", 0, 0), ("cuda:0", 3 if together else 0, 1)):
        monkeypatch.setattr(model, "_device", torch.device(device))
        model.on_train_batch_start((model.turn, Batch(*[torch.empty(0)] * 5)), 0)
        for _ in range(3):
            model.on_after_backward()
        assert len(waited) == steps
        before = model.cost_tracker.total().seconds
        model.on_validation_epoch_start()
        model.on_validation_epoch_start()  # of the best weights, after training: no clock runs
        assert len(waited) == steps + validations
        assert (model.cost_tracker.total().seconds - before >= 0.01) == bool(validations)


def test_a_batch_that_is_read_twice_shares_what_it_shared(study: Callable[[str], Study]) -> None:
    experiment = seeded(study("translation"), dim=16, depth=1)
    network, ((task, one),) = Network(experiment), experiment.tasks.items()
    pair = next(iter(open_split(one.source, "train")))
    split, _ = encode_split([pair] * 3, one.tokenizer, one.head)
    seen = list[Tokens]()
    network.trunk.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network.train().loss(task, collate(split, range(3)).to(torch.device("cpu")))
    assert [len(tokens.mask) for tokens in seen] == [6]
    assert seen[0].mask.stride() == (0, 0)
    assert seen[0].positions.stride(0) == 0


def test_a_loss_whose_memory_is_written_over_stays_as_it_was(study: Callable[[str], Study]) -> None:
    """A CUDA graph gives its answer in the same memory each time."""
    experiment = seeded(study("pictures"), dim=16, depth=1)
    model, ((task, one),) = UnifierModule(experiment), experiment.tasks.items()
    split, _ = encode_split(list(open_split(one.source, "train")[:5]), one.tokenizer, one.head)
    model.prepare({task: split})
    answer = torch.zeros(())
    model.training_loss = lambda task, batch: answer.add_(1)
    for _ in range(3):
        model.training_step(sent(model, task, split), 0)
    assert [loss.item() for loss in model.losses[task]] == [1, 2, 3]


def test_a_loss_is_weighed_by_what_is_learned_and_by_its_tasks_weight(study: Callable[[str], Study]) -> None:
    experiment = seeded(study("pictures"), dim=16, depth=1)
    ((task, one),) = experiment.tasks.items()
    fixed = replace(experiment, tasks={task: replace(one, weight=3.0)})
    loss = torch.tensor(1.7)
    assert UnifierModule(fixed).weighted_loss(task, loss).item() == pytest.approx(3 * 1.7)
    learned = UnifierModule(replace(fixed, training=replace(fixed.training, loss_weighting="uncertainty")))
    learned.log_variances[task].data.fill_(0.7)
    assert learned.weighted_loss(task, loss).item() == pytest.approx(3 * (1.7 * math.exp(-0.7) + 0.35))


@pytest.mark.parametrize(("norm", "clipped"), [(100.0, 2.5), (1.5, 1.5)])
def test_gradients_are_as_long_as_clip_at_most(study: Callable[[str], Study], norm: float, clipped: float) -> None:
    experiment = seeded(study("pictures"), dim=16, depth=1)
    model = UnifierModule(replace(experiment, training=replace(experiment.training, grad_clip=2.5)))
    entries = sum(parameter.numel() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, norm / math.sqrt(entries))
    ((task, _),) = experiment.tasks.items()
    model.cost_tracker.count(task, torch.ones(1), 1)
    model.configure_gradient_clipping(None)
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    assert found.norm().item() == pytest.approx(clipped, rel=1e-3)


@pytest.mark.parametrize("loss_weighting", ["fixed", "uncertainty"])
def test_an_task_that_has_a_step_to_itself_counts_by_its_weight_where_gradients_are_clipped(
    study: Callable[[str], Study], weighting: LossWeighting
) -> None:
    experiment = seeded(study("pictures"), dim=16, depth=1)
    ((_, one),) = experiment.tasks.items()
    training = replace(experiment.training, grad_clip=1e-3, loss_weighting=weighting)
    model = UnifierModule(replace(experiment, tasks={"a": replace(one, weight=8.0), "b": one}, training=training))
    for task, variance in zip(model.log_variances, (math.log(2), 0.0), strict=False):
        model.log_variances[task].data.fill_(variance)
    split, _ = encode_split(list(open_split(one.source, "train")[:5]), one.tokenizer, one.head)
    norms: list[float] = []
    for task in ("a", "b"):
        model.zero_grad()
        model.cost_tracker.count(task, torch.ones(1), 1)
        model.weighted_loss(task, model.loss(task, collate(split, range(5)))).backward()
        model.configure_gradient_clipping(None)
        model.cost_tracker.step()
        norms.append(float(nn.utils.get_total_norm(part.grad for part in model.parameters() if part.grad is not None)))
    assert norms[0] / norms[1] == pytest.approx(8 if weighting == "fixed" else 4, rel=1e-2)


def shares(schedule: Schedule, total: int, warmup: float = 0.1) -> list[float]:
    training = Training(steps=total, schedule=schedule, warmup_ratio=warmup)
    return [learning_rate_factor(training, step, total) for step in range(total)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("total", [1, 2, 10, 1000])
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.1, 1.0])
def test_the_learning_rate_rises_to_its_highest_and_never_again(schedule: Schedule, total: int, warmup: float) -> None:
    found = shares(schedule, total, warmup)
    warm = max(round(warmup * total), 1)
    assert found[warm - 1] == max(found) == 1
    assert all(0 < share <= 1 for share in found)
    rising, falling = found[:warm], found[warm - 1 :]
    assert rising == pytest.approx([(k + 1) / warm for k in range(warm)])  # as steps are taken
    assert falling == sorted(falling, reverse=True)


def test_the_cosine_is_the_one_of_torch_and_ends_at_nothing() -> None:
    total, warm = 200, 20
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warm)
    expected: list[float] = []
    for _ in range(total - warm):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert shares("cosine", total)[warm:] == pytest.approx(expected, abs=1e-6)
    assert learning_rate_factor(Training(steps=total), total, total) == pytest.approx(0, abs=1e-12)


def test_the_inverse_square_root_halves_in_four_times_the_steps() -> None:
    found = shares("inverse_sqrt", 1000)
    assert found[399] / found[99] == pytest.approx(0.5)
    assert found[899] / found[99] == pytest.approx(1 / 3)
    assert set(shares("constant", 50)[5:]) == {1.0}


@pytest.mark.parametrize(("area", "score"), [(0.8, 60.0), (math.nan, 40.0)], ids=["known", "unknown"])
def test_an_area_weighs_as_much_as_an_accuracy_where_weights_are_chosen(
    study: Callable[[str], Study], area: float, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = UnifierModule(seeded(study("genres_and_moods"), dim=16, depth=1))
    for task, found in (("genre", {"accuracy": 40.0}), ("moods", {"macro_auc": area})):
        monkeypatch.setattr(model.tasks[task].head, "metrics", lambda *_, found=found: found)
        model.predictions[task], model.targets[task, "val"] = {0: None}, {0: None}
    monkeypatch.setattr(model, "log", lambda *_: None)
    monkeypatch.setattr(model, "log_dict", lambda *_: None)
    model.on_validation_epoch_end()
    assert model.score == pytest.approx(score)


def test_the_random_state_of_an_accelerator_goes_on_too(
    study: Callable[[str], Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As there is none here, one that is made up: what it gives when a run is kept is given back when it goes on."""
    first, second, without = (UnifierModule(seeded(study("pictures"), dim=16, depth=1)) for _ in range(3))
    given: list[torch.Tensor] = []
    checkpoint: dict[str, Any] = {"global_step": 3}
    for model in (first, second):
        monkeypatch.setattr(model, "_device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    first.on_save_checkpoint(checkpoint)
    for model in (second, without):  # one goes on there, the other where there is none
        model.on_load_checkpoint(checkpoint)
        model.on_train_start()
    assert given == [torch.tensor([7])]
