"""Answers to questions about a text: a part of the text, or a written answer."""

import unifier as uf
from unifier.datasets import AnswerKind, create_question_dataset
from unifier.options import DecoderConfig, TrunkConfig, learn_vocabulary, learn_word_vocabulary

TRUNK = TrunkConfig(trunk="convolutional", depth=5, dropout=0.2)
DECODER = DecoderConfig(decoder_depth=2)
TRAINING = uf.Training(learning_rate=2e-3, precision="bf16", num_validations=8)


def question_answering(
    *,
    data: str = "squad_dev",
    how: AnswerKind = "span",
    vocabulary: int = 4000,
    max_length: int = 20,
    mark_shared: bool = True,
    trunk: TrunkConfig = TRUNK,
    decoder: DecoderConfig = DECODER,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Answer questions about a text.

    Args:
        data: squad_dev in the data folder, a file of your own in the format of SQuAD (.json) or JSON Lines (.jsonl), or
            datasets:DIR or parquet:DIR.
        how: Choose the span of the answer in the text, or write the answer.
        vocabulary: Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used.
        max_length: Largest number of words of a span.
        mark_shared: Mark the words of the text that are also in the question.
    """
    source = create_question_dataset(data, how)
    if how == "span":
        if decoder != DECODER:
            raise uf.InputError("how=span has no decoder: leave out the settings of the decoder")
        subwords = learn_word_vocabulary(source, source.name, vocabulary, training)
        texts = uf.WordTokenizer(subwords, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout)
        head = uf.QuestionAnsweringHead(trunk.dim, max_length=max_length, dropout=trunk.dropout)
    else:
        subwords = learn_vocabulary(source.name, source, vocabulary, training, targets=True)
        texts = uf.SubwordTokenizer(subwords, trunk.dim, positions=trunk.input_positions, dropout=trunk.dropout)
        head = decoder.build(subwords, trunk, texts.embedding, scores="squad")
    tokenizer = uf.Mixture({"question": texts, "context": texts}, mark_shared=mark_shared)
    task = uf.Task(source, tokenizer, head)
    return uf.Experiment(trunk.build(), {source.name: task}, training.sized_for(source, source.name))


if __name__ == "__main__":
    uf.run_this_file(__file__)
