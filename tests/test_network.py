"""From raw inputs to predictions: what a run would say of them, whatever they stand beside."""

import pytest
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, collate
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


def both(batch: Batch) -> list[Batch]:
    """Each picture as it is, and brighter."""
    return [batch, batch._replace(values=batch.values // 2 + 100)]


def experiment() -> Experiment:
    torch.manual_seed(0)
    digits, pairs = Digits(), GrammarPairs(train=30, val=2, test=6)
    vocabulary = Vocabulary.fit((text for pair in pairs.split("train") for text in pair), size=300)
    tasks = {
        "digits": Task(digits, PatchTokenizer(D, channels=1), ClassificationHead(digits.labels, D), tta=both),
        "en-fr": Task(
            pairs,
            SubwordTokenizer(vocabulary, D, dropout=0.5),
            TranslationHead(vocabulary, D, depth=1, heads=2, ffn_dim=8, dropout=0.5),
        ),
    }
    return Experiment(Transformer(D, 1, 2, 12, dropout=0.5), tasks, Training(steps=1), name="predict")


@pytest.mark.parametrize("task", ["digits", "en-fr"])
def test_predictions_are_those_of_a_test_and_of_each_example_alone(task: str) -> None:
    model = UnifierModule(experiment()).eval()
    one = model.tasks[task]
    examples = list(open_split(one.source, "test"))[:6]
    split, _ = encode_split(examples, one.tokenizer, one.head)
    with torch.no_grad():
        model.test_step((task, collate(split, range(6))), 0)
    raws = [example.input for example in examples]
    network = Network(Experiment(model.trunk, model.tasks, Training(steps=1), name="again")).train()
    found = network.predict(task, raws)
    assert all(module.training for module in network.modules())
    alone = [network.predict(task, [raw])[0] for raw in raws]
    for place in range(6):
        for prediction in (found[place], alone[place]):
            said = model.predictions[task][place]
            if isinstance(said, Tensor):
                assert not prediction.requires_grad
                torch.testing.assert_close(prediction, said)
            else:
                assert prediction == said


@pytest.mark.parametrize(
    ("predictions", "given"), [([], "0 predictions"), (torch.zeros(1, 10), r"\(1, 10\)"), (None, "NoneType")]
)
def test_predict_refuses_wrong_answers(predictions: object, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's class is named, and the network is in training mode again."""
    network = Network(experiment()).train()
    monkeypatch.setattr(network.tasks["digits"].head, "predict", lambda _: predictions)
    with pytest.raises(InputError, match=rf"ClassificationHead\.predict .*{given}.*1 examples"):
        network.predict("digits", [Digits().split("test")[0].input])
    assert all(module.training for module in network.modules())


def test_of_no_examples_nothing_is_said_and_an_task_that_is_none_is_named() -> None:
    network = Network(experiment())
    assert network.predict("digits", []) == []
    with pytest.raises(InputError, match="no task 'moods': choose one of digits, en-fr"):
        network.predict("moods", [])
