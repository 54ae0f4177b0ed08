"""How near written texts are to their references, by the field's scores."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

UNSPACED = {"zh": "zh", **dict.fromkeys(("ja", "th", "lo", "km", "my", "bo"), "char")}
"""How sacreBLEU cuts texts of languages that put no spaces between words, by which 13a would find one word a text."""
ORDER = 4
"""The longest n-grams that BLEU counts."""


class TextScore(NamedTuple):
    """A score of a whole set of texts, from 0 to 100."""

    score: float
    signature: str
    """Which variant of the score it is, as sacreBLEU writes it."""


def moses(texts: Sequence[str], language: str) -> list[str]:
    """Texts in small letters, their punctuation normalised, cut into tokens with spaces between.

    These are the three steps, in that order, with the defaults of Moses (Koehn et al. 2007), that made Multi30k's
    "lc.norm.tok" files: words with a hyphen stay whole. What Moses escapes for its own files' sake is left.
    """
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=False)) for text in texts]


def text_scores(predictions: Sequence[str], references: Sequence[str], language: str) -> dict[str, TextScore]:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015) of texts against one reference each, by sacreBLEU.

    "bleu" is cased, on the tokens of 13a (Post 2018) or of `UNSPACED`; "bleu_moses_lower" is in small letters, on those
    of `moses`. Where no reference has 4 tokens, BLEU is of the n-grams that there are, and its signature says so.
    """
    cut, cut_references = moses(predictions, language), moses(references, language)
    cased = _bleu(references, tokenize=UNSPACED.get(language, "13a"))
    lower, characters = _bleu(cut_references, lowercase=True, tokenize="none", force=True), CHRF()
    scores = {
        "bleu": cased.corpus_score(predictions, [references]).score,
        "chrf": characters.corpus_score(predictions, [references]).score,
        "bleu_moses_lower": lower.corpus_score(cut, [cut_references]).score,
    }
    tokens = f"tok:moses-norm-{language}-sacremoses-{version('sacremoses')}"
    signatures = {
        "bleu": str(cased.get_signature()),
        "chrf": str(characters.get_signature()),
        "bleu_moses_lower": str(lower.get_signature()).replace("tok:none", tokens),
    }
    return {name: TextScore(score, signatures[name]) for name, score in scores.items()}


def bleu_of_few(predictions: Sequence[str], references: Sequence[str], language: str) -> float:
    """The "bleu" of `text_scores`, but where no prediction has 4 tokens either, of the n-grams that there are."""
    scorer = BLEU(tokenize=UNSPACED.get(language, "13a"), effective_order=True)
    return scorer.corpus_score(predictions, [references]).score


def _bleu(references: Sequence[str], **options: Any) -> BLEU:
    scorer = BLEU(**options)
    long = any(len(scorer.tokenizer(text).split()) >= ORDER for text in references)
    return scorer if long else BLEU(**options, effective_order=True)
