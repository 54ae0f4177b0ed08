"""unifier: one transformer trained on text, images and audio, and comparisons of what sharing it gains or costs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unifier.comparison import Comparison
    from unifier.data.dataloader import Batch
    from unifier.data.source import Example, ScoreRange, Source
    from unifier.experiment import Experiment, Task, Training
    from unifier.heads.classification import ClassificationHead, TaggingHead
    from unifier.heads.head import Head
    from unifier.heads.transformer_decoder import TranslationHead
    from unifier.inference.load import load
    from unifier.launch import run
    from unifier.training.lightning_module import UnifierModule
    from unifier.training.result import Result
    from unifier.trunks.convolutional import ConvolutionalTrunk
    from unifier.trunks.mean_attention import MeanAttentionTrunk
    from unifier.trunks.recurrent import RecurrentTrunk
    from unifier.trunks.transformer import Transformer
    from unifier.trunks.trunk import Trunk

# Read from its module when first asked for, so that `import unifier` and the command line start at once.
_HOMES = {
    "Task": "unifier.experiment",
    "MeanAttentionTrunk": "unifier.trunks.mean_attention",
    "Batch": "unifier.data.dataloader",
    "ClassificationHead": "unifier.heads.classification",
    "Comparison": "unifier.comparison",
    "ConvolutionalTrunk": "unifier.trunks.convolutional",
    "Example": "unifier.data.source",
    "Experiment": "unifier.experiment",
    "Head": "unifier.heads.head",
    "RecurrentTrunk": "unifier.trunks.recurrent",
    "Result": "unifier.training.result",
    "ScoreRange": "unifier.data.source",
    "Source": "unifier.data.source",
    "TaggingHead": "unifier.heads.classification",
    "Training": "unifier.experiment",
    "Transformer": "unifier.trunks.transformer",
    "TranslationHead": "unifier.heads.transformer_decoder",
    "Trunk": "unifier.trunks.trunk",
    "UnifierModule": "unifier.training.lightning_module",
    "load": "unifier.inference.load",
    "run": "unifier.launch",
}

__all__ = [
    "Batch",
    "ClassificationHead",
    "Comparison",
    "ConvolutionalTrunk",
    "Example",
    "Experiment",
    "Head",
    "MeanAttentionTrunk",
    "RecurrentTrunk",
    "Result",
    "ScoreRange",
    "Source",
    "TaggingHead",
    "Task",
    "Training",
    "Transformer",
    "TranslationHead",
    "Trunk",
    "UnifierModule",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unifier' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
