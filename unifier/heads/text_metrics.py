"""Scores of texts against references: BLEU and chrF."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

_CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu")


_BY_CHARACTER = ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib")


UNSPACED_LANGUAGES: dict[str, str] = {**dict.fromkeys(_CHINESE, "zh"), **dict.fromkeys(_BY_CHARACTER, "char")}
"""How sacreBLEU cuts texts of languages that put no spaces between words, by their codes of two and three letters.

By 13a each text would be one word, or a few, and by Moses too.
"""


MAX_NGRAM = 4
"""The longest n-grams that BLEU counts."""


class TextScore(NamedTuple):
    """A score of a whole set of texts, from 0 to 100."""

    score: float
    signature: str
    """Which variant of the score it is, as sacreBLEU writes it."""


def moses(texts: Sequence[str], language: str) -> list[str]:
    """Texts in small letters, their punctuation normalized, cut into tokens with spaces between.

    These are the three steps, in that order, with the defaults of Moses (Koehn et al. 2007), that made Multi30k's
    "lc.norm.tok" files: words with a hyphen stay whole. What Moses escapes for its own files' sake is left.
    """
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=False)) for text in texts]


def text_scores(predictions: Sequence[str], references: Sequence[str], language: str) -> dict[str, TextScore]:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015) of texts against one reference each, by sacreBLEU.

    "bleu" is cased, on the tokens of 13a (Post 2018) or of `UNSPACED`; "bleu_moses_lower" is in small letters, on those
    of `moses`, and left out for `UNSPACED`. Where no reference has 4 tokens, BLEU is of the n-grams that there are, and
    its signature says so.
    """
    cased = _bleu(references, tokenize=UNSPACED_LANGUAGES.get(language, "13a"))
    found = {"bleu": _scored(cased, predictions, references), "chrf": _scored(CHRF(), predictions, references)}
    if language not in UNSPACED_LANGUAGES:
        cut, cut_references = moses(predictions, language), moses(references, language)
        lower = _scored(_bleu(cut_references, lowercase=True, tokenize="none", force=True), cut, cut_references)
        tokens = f"tok:moses-norm-{language}-sacremoses-{version('sacremoses')}"
        found["bleu_moses_lower"] = lower._replace(signature=lower.signature.replace("tok:none", tokens))
    return found


def _scored(scorer: BLEU | CHRF, predictions: Sequence[str], references: Sequence[str]) -> TextScore:
    score = scorer.corpus_score(predictions, [references]).score
    return TextScore(score, str(scorer.get_signature()))  # which says how many references there are once it has scored


def sentence_bleu(predictions: Sequence[str], references: Sequence[str], language: str) -> float:
    """The "bleu" of `text_scores`, but where no prediction has 4 tokens either, of the n-grams that there are."""
    scorer = BLEU(tokenize=UNSPACED_LANGUAGES.get(language, "13a"), effective_order=True)
    return scorer.corpus_score(predictions, [references]).score


def _bleu(references: Sequence[str], **options: Any) -> BLEU:
    scorer = BLEU(**options)
    long = any(len(scorer.tokenizer(text).split()) >= MAX_NGRAM for text in references)
    return scorer if long else BLEU(**options, effective_order=True)
