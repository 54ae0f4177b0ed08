"""Translation of texts from one language into another, or between several languages by one model."""

import unifier as uf
from unifier.augmentation import BpeDropout
from unifier.options import DecoderConfig, Level, ParallelTextConfig, TrunkConfig, learn_vocabulary

TRUNK = TrunkConfig(depth=4, heads=4, ffn_dim=256, qk_norm=True, scaled_residual_init=True)
DECODER = DecoderConfig(r_drop=5.0, beam_width=5)
TRAINING = uf.Training(optimizer="muon", learning_rate=8e-3, batch_tokens=2048, precision="bf16")
MIN_EPOCHS = 40


def translation(
    *,
    pairs: ParallelTextConfig = ParallelTextConfig(),
    vocabulary: int = 9500,
    level: Level = "bpe",
    bpe_dropout: float = 0.0,
    recase: bool = True,
    trunk: TrunkConfig = TRUNK,
    decoder: DecoderConfig = DECODER,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Translate texts with an encoder and a decoder that share one vocabulary.

    Args:
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        level: Kind of subword: bpe, wordpiece, unigram, word, character or byte.
        bpe_dropout: Probability that BPE skips the merge of two subwords, in training only.
        recase: Read an input in capitals as if it had the usual capitals. False reads it as it is.
    """
    if bpe_dropout and trunk.positions == "learned":
        raise uf.InputError(
            f"bpe_dropout={bpe_dropout} makes texts too long for positions=learned: set positions=sinusoid"
        )
    source = pairs.build()
    subwords = learn_vocabulary(pairs.name, source, vocabulary, training, targets=True, level=level, extra=pairs.codes)
    tokenizer = uf.SubwordTokenizer(
        subwords, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout, codes=pairs.codes, recase=recase
    )
    head = decoder.build(subwords, trunk, tokenizer.embedding, language=pairs.language)
    augmentation = BpeDropout(subwords, bpe_dropout) if bpe_dropout else None
    task = uf.Task(source, tokenizer, head, augmentation=augmentation)
    training = training.sized_for(source, pairs.name, minimum=MIN_EPOCHS)
    return uf.Experiment(trunk.build(), {pairs.name: task}, training)


if __name__ == "__main__":
    uf.run_this_file(__file__)
