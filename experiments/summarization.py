"""Summaries of texts in one sentence: a sentence of the text is chosen, or the summary or the title is written."""

import unifier as uf
from unifier.datasets import SummaryKind, create_summary_dataset
from unifier.options import DecoderConfig, TrunkConfig, learn_vocabulary, load_tokenizer

TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256, dropout=0.3)
DECODER = DecoderConfig(decoder_depth=2, beam_width=4)
TRAINING = uf.Training(optimizer="muon", learning_rate=2e-3, precision="bf16", num_validations=10)
MAX_TOKENS = 1024
"""The largest number of tokens of a text, for positions=learned."""


def summarization(
    *,
    data: str = "scitldr",
    how: SummaryKind = "choose",
    vocabulary: int = 4000,
    tokenizer: str | None = None,
    trunk: TrunkConfig = TRUNK,
    decoder: DecoderConfig = DECODER,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Summarize texts, such as abstracts of scientific papers.

    Args:
        data: scitldr in the data folder, a file of your own with a text, a tab and its summary per line, or
            datasets:DIR or parquet:DIR.
        how: Choose the sentence that summarizes the text, or write the title or the summary.
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        tokenizer: Pretrained vocabulary and embeddings for writing, as hf:MODEL; None means a learned vocabulary.
    """
    source = create_summary_dataset(data, how)
    chooses = how == "choose"
    if chooses and (tokenizer is not None or decoder != DECODER):
        raise uf.InputError("how=choose has no decoder and no pretrained tokenizer: leave out their settings")
    subwords = learn_vocabulary(source.name, source, vocabulary, training, targets=not chooses)
    if tokenizer is None:
        embedder = uf.SubwordTokenizer(
            subwords,
            trunk.dim,
            positions=trunk.input_positions,
            length=MAX_TOKENS,
            dropout=trunk.dropout,
            sentences=chooses,
        )
        shared = embedder.embedding
    else:
        embedder, shared = load_tokenizer(tokenizer, trunk), None
    if chooses:
        head = uf.SentenceSelectionHead(trunk.dim, dropout=trunk.dropout)
    else:
        head = decoder.build(subwords, trunk, shared, scores="rouge")
    task = uf.Task(source, embedder, head)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
