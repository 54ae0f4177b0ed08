"""From raw inputs to predictions: equal to those of a test, alone or in a batch."""

import pytest
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, TestTimeAugmentation, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.heads.transformer_decoder import TranslationHead
from unifier.network import Network
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, SubwordTokenizer, Vocabulary

D = 8


class Brighten(TestTimeAugmentation):
    """Two views of each picture: as it is, and brighter."""

    def __call__(self, batch: Batch) -> list[Batch]:
        return [batch, batch._replace(values=batch.values // 2 + 100)]


def experiment() -> Experiment:
    torch.manual_seed(0)
    digits, pairs = Digits(), GrammarPairs(train=30, val=2, test=6)
    vocabulary = Vocabulary.fit((text for pair in pairs.split("train") for text in pair), size=300)
    tasks = {
        "digits": Task(digits, PatchTokenizer(D, channels=1), ClassificationHead(digits.labels, D), tta=Brighten()),
        "en-fr": Task(
            pairs,
            SubwordTokenizer(vocabulary, D, dropout=0.5),
            TranslationHead(vocabulary, D, depth=1, heads=2, ffn_dim=8, dropout=0.5),
        ),
    }
    return Experiment(Transformer(D, 1, 2, 12, dropout=0.5), tasks, Training(steps=1), name="predict")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "en-fr"])
def test_predictions_equal_those_of_a_test(task: str) -> None:
    module = UnifierModule(experiment()).eval()
    tested = module.tasks[task]
    examples = list(open_split(tested.source, "test"))[:6]
    split, _ = encode_split(examples, tested.tokenizer, tested.head)
    with torch.no_grad():
        module.test_step((task, collate(split, range(6))), 0)
    raws = [example.input for example in examples]
    network = Network(module.trunk, module.tasks).train()
    together = network.predict(task, raws)
    assert all(part.training for part in network.modules())
    for index, raw in enumerate(raws):
        expected = module.predictions[task][index]
        for prediction in (together[index], network.predict(task, [raw])[0]):
            if isinstance(expected, Tensor):
                assert not prediction.requires_grad
                torch.testing.assert_close(prediction, expected)
            else:
                assert prediction == expected


def test_failing_network_keeps_its_mode() -> None:
    network = Network.from_experiment(experiment()).train()
    network.tasks["digits"].head.predict = lambda tokens: []  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InputError, match="predict"):
        network.predict("digits", [Digits().split("test")[0].input])
    assert all(module.training for module in network.modules())


def test_no_examples_and_unknown_tasks() -> None:
    network = Network.from_experiment(experiment())
    assert network.predict("digits", []) == []
    with pytest.raises(InputError, match="'moods'"):
        network.predict("moods", [])
