"""The words that a run is found by in Weights & Biases: its modalities, and its task."""

from collections.abc import Iterable, Mapping

from unifier.heads.classification import ClassificationHead
from unifier.heads.tagging import TaggingHead
from unifier.heads.writing import WritingHead
from unifier.study.experiment import Arm
from unifier_tokenizers import Mixture, PatchTokenizer, SubwordTokenizer, Tokenizer
from unifier_tokenizers.parts.sound import SoundTokenizer

MODALITIES = {SubwordTokenizer: "text", PatchTokenizer: "image", SoundTokenizer: "audio"}
TASKS = {WritingHead: "translation", ClassificationHead: "classification", TaggingHead: "tagging"}


def tags_of(arms: Iterable[Arm]) -> list[str]:
    """What the arms read, each member of a mixture, and what they answer; of kinds not known here the class's name."""
    arms = list(arms)
    read = [_word(one, MODALITIES) for arm in arms for one in _members(arm.tokenizer)]
    return list(dict.fromkeys([*read, *(_word(arm.head, TASKS) for arm in arms)]))


def _members(tokenizer: Tokenizer) -> list[Tokenizer]:
    if not isinstance(tokenizer, Mixture):
        return [tokenizer]
    return [one for member in tokenizer.members.values() for one in _members(member)]


def _word(part: object, known: Mapping[type, str]) -> str:
    return next((word for kind, word in known.items() if isinstance(part, kind)), type(part).__name__)
