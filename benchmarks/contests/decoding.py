"""Writing translations with one model's weights, greedily and by a beam of five."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from benchmarks.contests.grammar import GRAMMAR_SIZE, GrammarSize, sentences, trained
from benchmarks.models import sequence_weights, sequences
from benchmarks.models.copying import fill, read
from benchmarks.models.sequences import SIZE, Size
from benchmarks.racing.agreement import texts_differ
from benchmarks.racing.contest import SEED, Contest, Contestant, Role, Workload, autocast, ours, with_memory_kept
from unifier.data.dataloader import EvalDataLoader, collate
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Precision
from unifier.heads.text_generation import max_target_length
from unifier_tokenizers import Vocabulary
from unifier_tokenizers.text import EOS, PAD

MARIAN = "transformers.models.marian.modeling_marian"

Order = Callable[[EncodedSplit, int], list[list[int]]]
"""A split's rows in batches of at most so many."""


def longest(split: EncodedSplit) -> int:
    """Columns of the longest source."""
    return max(n for n, _ in split.lengths())


def as_table(found: Mapping[int, list[int]], split: EncodedSplit) -> Tensor:
    """Texts by their places as ids (texts, L), padded; each is cut where ours would have ended it."""
    limits = [max_target_length(n) for n, _ in split.lengths()]
    texts = [found[place][:most] for place, most in enumerate(limits)]
    return torch.tensor([text + [PAD] * (max(limits) - len(text)) for text in texts])


def unifier(size: Size, corpus: GrammarSize, width: int, precision: Precision, weights: Path) -> Workload:
    """Through our head's search, in the batches that ours evaluates in."""
    from benchmarks.contests import ours as own

    model, vocabulary = trained(size, corpus)
    own.save(model, weights)
    vocabulary.save(weights.with_suffix(".json"))
    split = sentences(corpus, vocabulary)
    batches = [collate(split, rows) for rows in as_ours(split, corpus.batch)]

    def decode() -> dict[int, list[int]]:
        with autocast("cpu", precision):
            return own.decode(model, batches, width)

    return Workload(decode, units=len(split), outputs=as_table(decode(), split))


def at_random(split: EncodedSplit, batch: int) -> list[list[int]]:
    """As the sentences come."""
    rows = list(range(len(split)))
    Random(SEED).shuffle(rows)
    return [rows[i : i + batch] for i in range(0, len(rows), batch)]


def by_length(split: EncodedSplit, batch: int) -> list[list[int]]:
    """The longest sources first."""
    rows = sorted(range(len(split)), key=lambda row: tuple(split.lengths()[row]), reverse=True)
    return [rows[i : i + batch] for i in range(0, len(rows), batch)]


def as_ours(split: EncodedSplit, batch: int) -> list[list[int]]:
    """The batches that ours evaluates in: the longest sources first, and the more of them the shorter they are."""
    return [rows.tolist() for _, rows in EvalDataLoader({"task": split}, max_tokens=batch * longest(split)).batches]


def marian(
    size: Size, corpus: GrammarSize, width: int, order: Order, batch: int, precision: Precision, weights: Path
) -> Workload:
    """transformers' generate, with a copy of our weights."""
    model = sequences.marian(size).eval()
    fill(model, sequence_weights.for_marian(read(weights)))
    split = sentences(corpus, Vocabulary.load(weights.with_suffix(".json")))
    batches = [collate(split, rows) for rows in order(split, batch)]

    def decode() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for one in batches:
            with autocast("cpu", precision):
                answer = model.generate(
                    input_ids=one.values,
                    attention_mask=one.mask.long(),
                    num_beams=width,
                    do_sample=False,
                    use_cache=True,
                    max_new_tokens=max_target_length(one.values.shape[1]),
                )
            texts = [ids[1 : ids.index(EOS)] if EOS in ids else ids[1:] for ids in answer.tolist()]
            found |= zip(one.example_indices.tolist(), texts, strict=True)
        return found

    return Workload(decode, units=len(split), outputs=as_table(decode(), split))


def contest(name: str, title: str, width: int, size: Size = SIZE, corpus: GrammarSize = GRAMMAR_SIZE) -> Contest:
    made = partial(marian, size, corpus, width)
    peers: tuple[tuple[Role, str, Order, int], ...] = (
        ("as it comes", "transformers' Marian", at_random, corpus.batch),
        ("best", "transformers' Marian, sorted", by_length, corpus.batch),
        ("best", "transformers' Marian, our batches", as_ours, corpus.batch),
        ("best", "transformers' Marian, sorted, one batch", by_length, corpus.sentences),
    )
    contestants = tuple(
        Contestant(name, role, "float32", MARIAN, partial(made, order, batch)) for role, name, order, batch in peers
    )
    return Contest(
        name,
        "decode",
        title,
        "sentences",
        (
            *ours(partial(unifier, size, corpus, width), "float32"),
            *with_memory_kept(contestants, "transformers' Marian, sorted"),
        ),
        texts_differ,
    )
