"""Translation with one model's weights, greedily and by a beam of five."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from benchmarks.cases.grammar import GRAMMAR_PLAN, GrammarPlan, sentences_to_translate, trained_translator
from benchmarks.models import sequence_weights, sequences
from benchmarks.models.sequences import SIZE, Size
from benchmarks.models.weights import copy_weights, load_state
from benchmarks.runner.case import SEED, Case, Role, Variant, Workload, autocast, our_variants, with_our_allocator
from benchmarks.runner.tolerance import text_mismatch
from unifier.data.dataloader import EvalDataLoader, collate
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Precision
from unifier.heads.text_generation import max_target_length
from unifier_tokenizers import Vocabulary
from unifier_tokenizers.text import EOS, PAD

MARIAN_MODULE = "transformers.models.marian.modeling_marian"

BatchSampler = Callable[[EncodedSplit, int], list[list[int]]]
"""Divides the example indices of a split into batches; the number is the batch size."""


def decoding_case(name: str, title: str, beam_width: int, size: Size = SIZE, plan: GrammarPlan = GRAMMAR_PLAN) -> Case:
    """Return a case that translates sentences with a beam of the given width."""
    build_marian = partial(_build_marian, size, plan, beam_width)
    peers: tuple[tuple[Role, str, BatchSampler, int], ...] = (
        ("default", "transformers' Marian", random_order, plan.batch),
        ("tuned", "transformers' Marian, sorted", longest_first, plan.batch),
        ("tuned", "transformers' Marian, our batches", our_eval_batches, plan.batch),
        ("tuned", "transformers' Marian, sorted, one batch", longest_first, plan.sentences),
    )
    variants = tuple(
        Variant(peer, role, "float32", MARIAN_MODULE, partial(build_marian, sampler, batch))
        for role, peer, sampler, batch in peers
    )
    return Case(
        name,
        "decode",
        title,
        "sentences",
        (
            *our_variants(partial(_build_ours, size, plan, beam_width), "float32"),
            *with_our_allocator(variants, "transformers' Marian, sorted"),
        ),
        text_mismatch,
    )


def random_order(split: EncodedSplit, batch: int) -> list[list[int]]:
    """Return batches in random order, as sentences arrive in practice."""
    indices = list(range(len(split)))
    Random(SEED).shuffle(indices)
    return [indices[i : i + batch] for i in range(0, len(indices), batch)]


def longest_first(split: EncodedSplit, batch: int) -> list[list[int]]:
    """Return batches sorted by length, the longest sources first."""
    indices = sorted(range(len(split)), key=lambda index: tuple(split.lengths()[index]), reverse=True)
    return [indices[i : i + batch] for i in range(0, len(indices), batch)]


def our_eval_batches(split: EncodedSplit, batch: int) -> list[list[int]]:
    """Return our evaluation batches: the longest sources first, and more sources in a batch if they are shorter."""
    longest = max(source_length for source_length, _ in split.lengths())
    return [indices.tolist() for _, indices in EvalDataLoader({"task": split}, max_tokens=batch * longest).batches]


def _build_ours(size: Size, plan: GrammarPlan, beam_width: int, precision: Precision, weights: Path) -> Workload:
    """Build our head's search over our evaluation batches, and save weights and vocabulary."""
    from benchmarks.cases.ours import save_weights, translate_batches

    model, vocabulary = trained_translator(size, plan)
    save_weights(model, weights)
    vocabulary.save(weights.with_suffix(".json"))
    split = sentences_to_translate(plan, vocabulary)
    batches = [collate(split, indices) for indices in our_eval_batches(split, plan.batch)]

    def translate() -> dict[int, list[int]]:
        with autocast("cpu", precision):
            return translate_batches(model, batches, beam_width)

    return Workload(translate, units=len(split), outputs=_pad_translations(translate(), split))


def _build_marian(
    size: Size,
    plan: GrammarPlan,
    beam_width: int,
    sampler: BatchSampler,
    batch_size: int,
    precision: Precision,
    weights: Path,
) -> Workload:
    """Build transformers' `generate` with a copy of our weights."""
    model = sequences.create_marian(size).eval()
    copy_weights(model, sequence_weights.convert_for_marian(load_state(weights)))
    split = sentences_to_translate(plan, Vocabulary.load(weights.with_suffix(".json")))
    batches = [collate(split, indices) for indices in sampler(split, batch_size)]

    def translate() -> dict[int, list[int]]:
        translations: dict[int, list[int]] = {}
        for batch in batches:
            with autocast("cpu", precision):
                generated = model.generate(
                    input_ids=batch.values,
                    attention_mask=batch.mask.long(),
                    num_beams=beam_width,
                    do_sample=False,
                    use_cache=True,
                    max_new_tokens=max_target_length(batch.values.shape[1]),
                )
            texts = [ids[1 : ids.index(EOS)] if EOS in ids else ids[1:] for ids in generated.tolist()]
            translations |= zip(batch.example_indices.tolist(), texts, strict=True)
        return translations

    return Workload(translate, units=len(split), outputs=_pad_translations(translate(), split))


def _pad_translations(translations: Mapping[int, list[int]], split: EncodedSplit) -> Tensor:
    """Return ids (texts, L), padded. Each text is cut at the maximum length that ours allows for its source."""
    limits = [max_target_length(source_length) for source_length, _ in split.lengths()]
    texts = [translations[index][:limit] for index, limit in enumerate(limits)]
    return torch.tensor([text + [PAD] * (max(limits) - len(text)) for text in texts])
