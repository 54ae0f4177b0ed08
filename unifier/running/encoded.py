"""An experiment's data, encoded once for all runs that read it."""

import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, final

from unifier.data.examples import Examples, split_of
from unifier.data.keeping.encoding import Encoded, encode_split
from unifier.data.keeping.kept import keep_units
from unifier.data.saying import say
from unifier.data.source import SPLITS, SplitName, name_of, scale_of, target_of
from unifier.running.result import describe_data
from unifier.study.experiment import Arm, Experiment
from unifier_tokenizers import InputError


@final
@dataclass(frozen=True)
class EncodedArm:
    """An arm's splits, encoded, and what result.json says of its data."""

    splits: Mapping[SplitName, Encoded]
    data: Mapping[str, Any]


def encode(experiment: Experiment, known: MutableMapping[str, EncodedArm]) -> dict[str, EncodedArm]:
    """Each arm's splits; those that are not known yet are encoded, and known then.

    Raises InputError for what cannot be encoded, and before for a scale that is none.
    """
    training = experiment.training
    unknown = {arm: one for arm, one in experiment.arms.items() if arm not in known}
    for one in unknown.values():
        scale_of(one.source)  # so that one which is none is told before all is encoded
    for arm, one in unknown.items():
        splits: dict[SplitName, Encoded] = {}
        skipped: dict[str, int] = {}
        bad_examples, workers = training.bad_examples, training.workers
        kept = keep_units(one.source, one.tokenizer, bad_examples=bad_examples, workers=workers)
        for split in SPLITS:
            examples, said = split_of(one.source, split), f"{name_of(one.source)}, {split}"
            if kept is not None and isinstance(examples, Examples):
                splits[split], bad = kept.split(examples, one.head, bad_examples=bad_examples, said=said)
            else:
                splits[split], bad = encode_split(
                    examples, one.tokenizer, one.head, bad_examples=bad_examples, workers=workers, said=said
                )
                _check_again(one, split, splits[split])
            _check_alike(said, splits[split], splits["train"])
            skipped[split] = len(bad)
            if bad:
                say(f"{name_of(one.source)}, {split}: {len(bad)} examples skipped, such as {bad[0]}", sys.stderr)
        data = describe_data(one.source, skipped)
        if copies := data.get("copies"):
            said = f"{copies} examples of val and test are also in train, byte for byte"
            say(f"{name_of(one.source)}: {said}", sys.stderr)
        known[arm] = EncodedArm(splits, data)
    return {arm: known[arm] for arm in experiment.arms}


def _check_alike(said: str, encoded: Encoded, trained_on: Encoded) -> None:
    """Raise InputError where the examples of a split are not laid out as those of training are."""
    for part in ("values", "positions", "targets"):
        own, other = (getattr(split, part).layout for split in (encoded, trained_on))
        if own != other:
            raise InputError(f"{said}: its {part} are {own}, and those to train on {other}: encode all alike")


SOME = 32
"""Examples that tell whether a split is the same again."""


def _check_again(arm: Arm, split: SplitName, encoded: Encoded) -> None:
    """Raise InputError where a source draws a split anew each time: its examples would be scored by others' targets."""
    again = split_of(arm.source, split)
    for row in range(0, len(encoded), max(len(encoded) // SOME, 1)):
        place, own = int(encoded.indices[row]), encoded.target(row)
        if place < len(again):
            other = arm.head.encode(target_of(again, place))
            if own.shape == other.shape and bool(((own == other) | (own != own)).all()):  # NaN is unlike itself
                continue
        raise InputError(
            f'{name_of(arm.source)}: split("{split}") gives other examples when it is asked again; draw them once, or '
            "by a seed of their own"
        )
