"""unifier: one transformer trained on text, images and audio, and comparisons of what sharing it gains or costs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unifier.data.loading import Batch
    from unifier.data.source import Example, Scale, Source
    from unifier.heads.classification import ClassificationHead
    from unifier.heads.head import Head
    from unifier.heads.tagging import TaggingHead
    from unifier.heads.translation import TranslationHead
    from unifier.model import Unifier
    from unifier.running.result import Result
    from unifier.running.run import run
    from unifier.running.using.load import load
    from unifier.study.comparison import Comparison
    from unifier.study.experiment import Arm, Experiment, Training
    from unifier.trunks.bag import Bag
    from unifier.trunks.convolutional import Convolutional
    from unifier.trunks.recurrent import Recurrent
    from unifier.trunks.transformer import Transformer
    from unifier.trunks.trunk import Trunk

# Read from its module when first asked for, so that `import unifier` and the command line start at once.
_HOMES = {
    "Arm": "unifier.study.experiment",
    "Bag": "unifier.trunks.bag",
    "Batch": "unifier.data.loading",
    "ClassificationHead": "unifier.heads.classification",
    "Comparison": "unifier.study.comparison",
    "Convolutional": "unifier.trunks.convolutional",
    "Example": "unifier.data.source",
    "Experiment": "unifier.study.experiment",
    "Head": "unifier.heads.head",
    "Recurrent": "unifier.trunks.recurrent",
    "Result": "unifier.running.result",
    "Scale": "unifier.data.source",
    "Source": "unifier.data.source",
    "TaggingHead": "unifier.heads.tagging",
    "Training": "unifier.study.experiment",
    "Transformer": "unifier.trunks.transformer",
    "TranslationHead": "unifier.heads.translation",
    "Trunk": "unifier.trunks.trunk",
    "Unifier": "unifier.model",
    "load": "unifier.running.using.load",
    "run": "unifier.running.run",
}

__all__ = [
    "Arm",
    "Bag",
    "Batch",
    "ClassificationHead",
    "Comparison",
    "Convolutional",
    "Example",
    "Experiment",
    "Head",
    "Recurrent",
    "Result",
    "Scale",
    "Source",
    "TaggingHead",
    "Training",
    "Transformer",
    "TranslationHead",
    "Trunk",
    "Unifier",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unifier' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
