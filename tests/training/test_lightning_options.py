"""A run accepts Lightning's callbacks and Trainer arguments, unless the arguments would change its plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.plugins import MixedPrecision, TorchCheckpointIO
from lightning.pytorch.profilers import SimpleProfiler

from unifier import Comparison, Experiment, InputError, Result, Training, Transformer, run
from unifier.files import read_json
from unifier.training.fit import fit
from unifier.training.lightning_options import LightningOptions
from unifier.training.result import Interrupted
from unifier.training.run_context import RunContext

pytestmark = pytest.mark.usefixtures("undrawn")


@final
class Counter(Callback):
    """A callback with a state, which may stop the run."""

    def __init__(self, stop_at: int = 0) -> None:
        self.steps, self.stop_at, self.trainer = 0, stop_at, None

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        self.steps, self.trainer = self.steps + 1, trainer

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        if self.stop_at and self.steps == self.stop_at:
            folder = Path(trainer.default_root_dir)
            trainer.save_checkpoint(folder / "checkpoints" / "last.ckpt")
            raise Interrupted(folder)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, **({"seen": [1]} if self.steps else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]


@pytest.mark.slow
def test_callbacks_and_arguments_reach_the_trainer(run_tracked: Callable[..., Result]) -> None:
    counter, plugin = Counter(), MixedPrecision("bf16-mixed", "cpu")
    given: dict[str, Any] = {"profiler": "simple", "limit_val_batches": 1, "plugins": plugin}
    with pytest.warns(UserWarning, match="limit_val_batches=1"):
        result = run_tracked(lightning=LightningOptions([counter], given))
    assert (counter.steps, counter.trainer and counter.trainer.precision_plugin) == (3, plugin)
    assert "training_step" in (result.folder / "fit-profile.txt").read_text()
    assert read_json(result.folder / "settings.json")["lightning"] == {
        "callbacks": [f"{__name__}.Counter"],
        "trainer": {**given, "plugins": "lightning.pytorch.plugins.precision.amp.MixedPrecision"},
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint")  # Lightning warns too.
def test_resumed_run_restores_the_state_of_a_callback(make_experiment: Any, tmp_path: Path) -> None:
    def train(counter: Counter | None, resume: Path | None = None) -> Result:
        context = RunContext(tmp_path, "study", wandb="off", lightning=LightningOptions([counter] if counter else []))
        return fit(lambda: make_experiment(steps=4), {}, 0, context, resume)

    folders: list[Path] = []
    for _ in range(2):
        with pytest.raises(Interrupted) as stopped:
            train(Counter(stop_at=2))
        folders.append(stopped.value.folder)
    resumed = Counter()
    assert train(resumed, folders[0]).status == "finished"
    assert resumed.steps == 4
    with pytest.warns(UserWarning, match=r"own callbacks.*Counter.* to none"):
        assert train(None, folders[1]).status == "finished"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (LightningOptions(trainer={"max_steps": 3}), "max_steps.*steps"),
        (LightningOptions(trainer={"precision": 16}), "precision"),
        (LightningOptions(trainer={"limit_test_batches": 2}), "limit_test_batches"),
        (LightningOptions(trainer={"overfit_batches": 2}), "overfit_batches"),
        (LightningOptions(trainer={"gpus": 2}), "gpus"),
        (LightningOptions(trainer={"profiler": "fast"}), "fast"),
        (LightningOptions(trainer={"plugins": [TorchCheckpointIO()]}), "plugins"),
        (LightningOptions(trainer={"plugins": MixedPrecision("16-mixed", "cpu", scaler=object())}), "bf16"),  # pyright: ignore[reportArgumentType]
        (LightningOptions([EarlyStopping("val/score")]), "EarlyStopping.*patience"),
        (LightningOptions([3]), "int"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_options_that_change_the_plan_are_refused(options: LightningOptions, named: str) -> None:
    with pytest.raises(InputError, match=named):
        options.check(several_runs=False)


@pytest.mark.slow
def test_each_run_of_a_comparison_has_its_own_callbacks(make_task: Any, tmp_path: Path) -> None:
    def digits(*, steps: int = 2) -> Experiment:
        return Experiment(Transformer(8, 1, 2, 8), {"a": make_task()}, Training(steps=steps, num_validations=1))

    def twice() -> Comparison:
        return Comparison("twice", [digits], seeds=(0, 1), budget_unit="steps")

    shared: list[dict[str, Any]] = [{"callbacks": [Counter()]}, {"trainer": {"profiler": SimpleProfiler()}}]
    for given in shared:
        with pytest.raises(InputError, match="comparison"):
            run(twice, out=tmp_path, track="off", **given)
    counters: list[Counter] = []

    def create() -> Counter:
        counters.append(Counter())
        return counters[-1]

    run(twice, out=tmp_path, track="off", callbacks=[create], trainer=lambda: {"profiler": SimpleProfiler()})
    assert [counter.steps for counter in counters] == [2, 2]
