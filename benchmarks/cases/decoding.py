"""Cases that translate sentences with a trained model, by greedy search or by beam search."""

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
from unifier_tokenizers.subwords import EOS, PAD

MARIAN_MODULE = "transformers.models.marian.modeling_marian"

BatchSampler = Callable[[EncodedSplit, int], list[list[int]]]
"""Function from a split and a batch size to the example indices of each batch."""


def decoding_case(name: str, title: str, beam_width: int, size: Size = SIZE, plan: GrammarPlan = GRAMMAR_PLAN) -> Case:
    """Create the case that translates sentences by a beam search of width `beam_width`."""
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
    """Shuffle the examples and divide them into batches."""
    indices = list(range(len(split)))
    Random(SEED).shuffle(indices)
    return [indices[i : i + batch] for i in range(0, len(indices), batch)]


def longest_first(split: EncodedSplit, batch: int) -> list[list[int]]:
    """Sort the examples by source length, longest first, and divide them into batches."""
    indices = sorted(range(len(split)), key=lambda index: tuple(split.lengths()[index]), reverse=True)
    return [indices[i : i + batch] for i in range(0, len(indices), batch)]


def our_eval_batches(split: EncodedSplit, batch: int) -> list[list[int]]:
    """Return our evaluation batches. Batches of short examples contain more examples."""
    longest = max(source_length for source_length, _ in split.lengths())
    return [indices.tolist() for _, indices in EvalDataLoader({"task": split}, max_tokens=batch * longest).batches]


def _build_ours(size: Size, plan: GrammarPlan, beam_width: int, precision: Precision, weights: Path) -> Workload:
    """Build the translation with our model, and save the model's weights and vocabulary."""
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
    """Build the translation with transformers' Marian and a copy of our weights."""
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
    """Return padded token ids (texts, L). Texts are truncated to our maximum length for the source."""
    limits = [max_target_length(source_length) for source_length, _ in split.lengths()]
    texts = [translations[index][:limit] for index, limit in enumerate(limits)]
    return torch.tensor([text + [PAD] * (max(limits) - len(text)) for text in texts])
