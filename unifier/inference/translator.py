"""A run as a translator: texts in, translations and alignments out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, batch_by_tokens, sort_by_length
from unifier.files import read_json
from unifier.heads.generation import Hypothesis
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead
from unifier.inference.load import load
from unifier.nn.precision import default_device
from unifier_tokenizers import InputError, SubwordTokenizer, Tokens, Units, pad_columns
from unifier_tokenizers.text import EOS

SearchFn = Callable[[TextGenerationHead, Tokens, Sequence[int]], list[list[Hypothesis]]]
"""How texts are found for B examples: with the head, from what the trunk read, the examples being numbered so."""


class Alignment(NamedTuple):
    """Which token of a text looked at which of the text that it translates."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    """A row for each token of the target, its end mark included; each sums to 1."""


class Translation(NamedTuple):
    """What was found for one text, best first."""

    texts: list[str]
    scores: list[float]
    cut: bool
    """Whether the best was cut off at the most tokens that a text may have."""
    alignment: Alignment | None = None


@final
class Translator:
    """The task of a run that translates, in evaluation mode, on the accelerator where there is one."""

    def __init__(self, folder: str | Path, experiment: str | None = None, *, align: bool = False) -> None:
        """`experiment` (FILE:name) says where the experiment's file is now, if it was moved; with `align` each
        translation tells what looked at what.

        Raises InputError for a folder that is no run, was stopped too early, or does not translate; and for one whose
        decoder cannot tell what it looks at, where it is to `align`.
        """
        loaded = load(folder, experiment)
        described, self.model = loaded.experiment, loaded.network
        tasks = {
            name: (task.tokenizer, task.head)
            for name, task in described.tasks.items()
            if isinstance(task.head, TextGenerationHead) and isinstance(task.tokenizer, SubwordTokenizer)
        }
        if len(tasks) != 1:
            raise InputError(
                f'{folder} is a run of "{described.name}", and {len(tasks) or "none"} of its tasks '
                f"({', '.join(described.tasks)}) translate{'' if tasks else 's'} texts: one is needed"
            )
        ((self.task, (self.tokenizer, self.head)),) = tasks.items()
        if align and not isinstance(self.head, AttentiveTextHead):
            raise InputError(f"{folder}: its decoder has no attention that could be shown; leave out --attention")
        self.align = align
        self.columns = described.training.batch_tokens
        self.longest: int = read_json(Path(folder) / "settings.json", longest=dict)["longest"][self.task]
        """The most tokens of a text it was trained on."""
        self.device = torch.device(default_device())
        self.model.to(self.device)

    @torch.inference_mode()
    def translate(self, examples: Sequence[Units], search: SearchFn) -> list[Translation]:
        """What `search` finds for each of some texts, which the tokenizer has encoded, in their order.

        They are read in batches of like length.
        """
        if not examples:
            return []
        lengths = np.array([(units.values.shape[-1], 1) for units in examples], np.int32)
        found: dict[int, Translation] = {}
        for rows in (batch.tolist() for batch in batch_by_tokens(sort_by_length(lengths), lengths, self.columns)):
            values, positions, mask = (part.to(self.device) for part in pad_columns([examples[row] for row in rows]))
            tokens = self.model.forward_features(self.task, Batch(values, positions, mask, torch.tensor(rows)))
            limits = self.head.max_lengths(tokens).tolist()
            for b, (row, texts) in enumerate(zip(rows, search(self.head, tokens, rows), strict=True)):
                best = texts[0].ids
                found[row] = Translation(
                    [self.head.vocabulary.decode(text.ids) for text in texts],
                    [text.score for text in texts],
                    len(best) == limits[b],
                    self._align(Tokens(*(part[b : b + 1] for part in tokens)), values[b], best) if self.align else None,
                )
        return [found[row] for row in range(len(examples))]

    def _align(self, tokens: Tokens, source: Tensor, target: list[int]) -> Alignment:
        assert isinstance(self.head, AttentiveTextHead)
        (weights,) = self.head.alignment(tokens, torch.tensor([target], dtype=torch.long, device=self.device))
        real = tokens.mask[0]
        name = self.head.vocabulary.tokens
        return Alignment(
            self.tokenizer.vocabulary.tokens(source[real].tolist()), name([*target, EOS]), weights[:, real].tolist()
        )
