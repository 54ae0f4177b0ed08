"""Translator: a trained run that turns texts into translations and alignments."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, batch_by_tokens, sort_by_length
from unifier.datasets.language_pairs import language_code
from unifier.heads.generation import Hypothesis
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead
from unifier.inference.explain import TokenStep, token_steps
from unifier.inference.model import Model, load
from unifier_tokenizers import InputError, SubwordTokenizer, TextPiece, Tokens, Units, pad_columns
from unifier_tokenizers.subwords import EOS

SearchFn = Callable[[TextGenerationHead, Tokens, Sequence[int]], list[list[Hypothesis]]]
"""A function that searches the best texts of each example, given the head, the trunk's tokens and B example indices."""


class Alignment(NamedTuple):
    """Attention from the tokens of a translation to the tokens of its source text."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    """One row per token of the target, including the end token. Each row sums to 1."""


class Translation(NamedTuple):
    """The translations of one text, sorted from best to worst."""

    texts: list[str]
    scores: list[float]
    truncated: bool
    """True if the best translation was truncated at the maximum length."""
    alignment: Alignment | None = None
    steps: list[TokenStep] | None = None
    """The steps of the best translation, including the end token."""


@final
class Translator:
    """Translation task of a model."""

    def __init__(
        self,
        source: str | Path | Model,
        *,
        task: str | None = None,
        align: bool = False,
        candidates: int | None = None,
        to: str | None = None,
    ) -> None:
        """Open the model.

        Args:
            source: The folder of a model or of a finished run, which uses the accelerator if the machine has one; or a
                model on its device.
            task: The task that translates. The name is required if several tasks of the model translate.
            align: True to compute the alignment of each translation.
            candidates: The number of likely tokens to compute for each step of a translation. None means no steps.
            to: The language of the translations, such as "de", for a model of several languages only.

        Raises:
            InputError: The folder contains no model, or the model does not have exactly one translation task. With
                `align`, the error is also raised if the decoder has no attention. The error is also raised if `to` is
            missing, or if the model has no code for the language `to`.
        """
        model = source if isinstance(source, Model) else load(source).to()
        source = model.folder if isinstance(source, Model) else source
        tasks = {
            name: (part.tokenizer, part.head)
            for name, part in model.tasks.items()
            if isinstance(part.head, TextGenerationHead)
            and isinstance(part.tokenizer, SubwordTokenizer)
            and task in (None, name)
        }
        if len(tasks) != 1:
            raise InputError(
                f"{source}: {len(tasks) or 'none'} of its tasks ({', '.join(model.tasks)}) "
                f"translate{'' if tasks else 's'} texts: choose one task that translates texts"
            )
        ((self.task, (self.tokenizer, self.head)),) = tasks.items()
        if align and not isinstance(self.head, AttentiveTextHead):
            raise InputError(f"{source}: its decoder has no attention that could be shown; leave out --attention")
        self._code_ids = self._choose_language(to)
        self.align, self.candidates = align, candidates
        self.max_tokens = model.batch_tokens
        self.longest = model.tasks[self.task].longest
        """The number of tokens of the longest text in training."""
        self.model, self.device, self.network = model, model.device, model.network

    def _choose_language(self, to: str | None) -> tuple[int, ...]:
        """Return the id of the code of a language, or () if the model has no codes."""
        languages, vocabulary = [code[1:-1] for code in self.tokenizer.codes], self.tokenizer.vocabulary
        if to is None and languages:
            raise InputError(f"this model writes several languages: give --to with one of {', '.join(languages)}")
        if to is not None and to not in languages:
            known = f"has codes for {', '.join(languages)}" if languages else "writes one language, so leave out --to"
            raise InputError(f"--to {to}: the model has no code for this language; it {known}")
        return () if to is None else (vocabulary.extra[language_code(to)],)

    def encode(self, text: str) -> Units:
        """Encode a text, after the code of the output language if the model writes several languages."""
        if not self._code_ids:
            return self.tokenizer.encode(text)
        # The text is encoded alone, because its characters could be the name of a code.
        return self.tokenizer.encode(
            TextPiece((*self._code_ids, *self.tokenizer.vocabulary.encode(self.tokenizer.recased(text)), EOS))
        )

    def translate(self, examples: Sequence[Units], search: SearchFn) -> list[Translation]:
        """Translate encoded texts in batches of similar length. The translations are in the order of the texts."""
        if not examples:
            return []
        with self.model.inference_mode():
            return self._translate(examples, search)

    def _translate(self, examples: Sequence[Units], search: SearchFn) -> list[Translation]:
        lengths = np.array([(units.values.shape[-1], 1) for units in examples], np.int32)
        translations: dict[int, Translation] = {}
        for batch in batch_by_tokens(sort_by_length(lengths), lengths, self.max_tokens):
            indices = batch.tolist()
            units = pad_columns([examples[index] for index in indices])
            values, positions, mask = (part.to(self.device) for part in units)
            inputs = Batch(values, positions, mask, torch.tensor(indices))
            tokens = self.network.forward_features(self.task, inputs)
            max_lengths = self.head.max_lengths(tokens).tolist()
            for b, (index, hypotheses) in enumerate(zip(indices, search(self.head, tokens, indices), strict=True)):
                best = hypotheses[0].ids
                row, truncated = Tokens(*(part[b : b + 1] for part in tokens)), len(best) == max_lengths[b]
                translations[index] = Translation(
                    [self.head.vocabulary.decode(hypothesis.ids) for hypothesis in hypotheses],
                    [hypothesis.score for hypothesis in hypotheses],
                    truncated,
                    self._align(row, values[b], best) if self.align else None,
                    token_steps(self.head, row, best, self.candidates, truncated=truncated)
                    if self.candidates
                    else None,
                )
        return [translations[index] for index in range(len(examples))]

    def _align(self, tokens: Tokens, source: Tensor, target: list[int]) -> Alignment:
        """Return the alignment of one translation.

        Args:
            tokens: The trunk's tokens of the source (1, D, N).
            source: The token ids of the source (N,).
            target: The token ids of the translation.
        """
        assert isinstance(self.head, AttentiveTextHead)
        (weights,) = self.head.alignment(tokens, torch.tensor([target], dtype=torch.long, device=self.device))
        real = tokens.mask[0]
        return Alignment(
            self.tokenizer.vocabulary.tokens(source[real].tolist()),
            self.head.vocabulary.tokens([*target, EOS]),
            weights[:, real].tolist(),
        )
