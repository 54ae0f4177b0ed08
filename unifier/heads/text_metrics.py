"""The metrics BLEU and chrF, which compare generated texts with reference texts."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu")
SCORED_BY_CHARACTER = ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib")
UNSPACED_LANGUAGES: dict[str, str] = {**dict.fromkeys(CHINESE, "zh"), **dict.fromkeys(SCORED_BY_CHARACTER, "char")}
"""A mapping from language codes to sacreBLEU's tokenizers, for languages without spaces between words.

Without spaces between words, the tokenizers "13a" and Moses would split a text into a few very long words.
"""

MAX_NGRAM = 4
"""The number of tokens in BLEU's longest n-grams."""


class TextScore(NamedTuple):
    """A corpus score, from 0 to 100."""

    score: float
    signature: str
    """The text with which sacreBLEU identifies the exact variant of the score."""


def text_scores(predictions: Sequence[str], references: Sequence[str], language: str) -> dict[str, TextScore]:
    """Compute BLEU (Papineni et al. 2002) and chrF (Popović 2015) with sacreBLEU, with one reference per text.

    If all references have fewer than four tokens, BLEU uses effective order, and BLEU's signature contains "eff:yes".

    Args:
        predictions: The generated texts.
        references: One reference for each prediction.
        language: The code of the language of the references.

    Returns:
        The scores "bleu" and "chrf" and, for languages with spaces, "bleu_moses_lower". "bleu" is case-sensitive and
        uses the tokens of "13a" (Post 2018) or of a tokenizer in `UNSPACED_LANGUAGES`. "bleu_moses_lower" uses the
        lowercase tokens of `moses`.
    """
    tokens = f"tok:moses-norm-{language}-sacremoses-{version('sacremoses')}"
    scores: dict[str, TextScore] = {}
    for name, metric, texts, targets in _metrics(predictions, references, language):
        score = metric.corpus_score(texts, [targets]).score
        # sacreBLEU adds the number of references to the signature when the score is computed.
        scores[name] = TextScore(score, str(metric.get_signature()).replace("tok:none", tokens))
    return scores


def text_statistics(
    predictions: Sequence[str], references: Sequence[str], language: str
) -> dict[str, tuple[NDArray[np.int64], Callable[[NDArray[np.int64]], float]]]:
    """Return sacreBLEU's statistics (texts, S) for each score of `text_scores`, and the function that scores a sum."""
    statistics: dict[str, tuple[NDArray[np.int64], Callable[[NDArray[np.int64]], float]]] = {}
    for name, metric, texts, targets in _metrics(predictions, references, language):
        # sacreBLEU has no public methods for statistics per text. Its own significance tests use these methods.
        extract: Any = metric._extract_corpus_statistics  # pyright: ignore[reportPrivateUsage]
        compute: Any = metric._compute_score_from_stats  # pyright: ignore[reportPrivateUsage]
        statistics[name] = np.array(extract(texts, [targets])), lambda total, compute=compute: compute(total).score
    return statistics


def sentence_bleu(predictions: Sequence[str], references: Sequence[str], language: str) -> float:
    """Compute the score "bleu" of `text_scores` with effective order, which avoids a score of 0 for short texts."""
    metric = BLEU(tokenize=UNSPACED_LANGUAGES.get(language, "13a"), effective_order=True)
    return metric.corpus_score(predictions, [references]).score


def moses(texts: Sequence[str], language: str) -> list[str]:
    """Lowercase the texts, normalize their punctuation, and join their tokens with spaces.

    The result has the format of the "lc.norm.tok" files of Multi30k, which Moses (Koehn et al. 2007) produced.
    Hyphenated words are not split, and special characters are not escaped.
    """
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=False)) for text in texts]


def _metrics(
    predictions: Sequence[str], references: Sequence[str], language: str
) -> Iterator[tuple[str, BLEU | CHRF, Sequence[str], Sequence[str]]]:
    """Yield the name, the metric and the prepared texts of each score of `text_scores`."""
    yield "bleu", _bleu(references, tokenize=UNSPACED_LANGUAGES.get(language, "13a")), predictions, references
    yield "chrf", CHRF(), predictions, references
    if language not in UNSPACED_LANGUAGES:
        tokenized, tokenized_references = moses(predictions, language), moses(references, language)
        metric = _bleu(tokenized_references, lowercase=True, tokenize="none", force=True)
        yield "bleu_moses_lower", metric, tokenized, tokenized_references


def _bleu(references: Sequence[str], **options: Any) -> BLEU:
    """Return a BLEU metric, which uses effective order if all references have fewer than `MAX_NGRAM` tokens."""
    metric = BLEU(**options)
    is_long = any(len(metric.tokenizer(text).split()) >= MAX_NGRAM for text in references)
    return metric if is_long else BLEU(**options, effective_order=True)
