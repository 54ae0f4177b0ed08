"""BLEU and chrF against sacreBLEU, and Moses tokens against those of Multi30k."""

import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from unifier.heads.text_metrics import moses, sentence_bleu, text_scores

GIRL = "Mädchen sieht zwei Hunde, die rennen"
PREDICTIONS = ["Zwei Hunde laufen durch den Schnee.", f"ein {GIRL}", "Ein rot-weißer Hut", ""]
REFERENCES = ["Zwei Hunde rennen durch den Schnee.", f"Ein {GIRL}.", "Ein rot-weißer Hut", "Ein Hund"]
CHINESE = ["两只狗在雪地里奔跑。", "一个男孩坐在肩膀上。"]
JAPANESE = ["二匹の犬が雪の中を走る。", "男の子が座っている。"]


def test_cased_scores_equal_sacrebleu() -> None:
    scores = text_scores(PREDICTIONS, REFERENCES, "de")
    assert list(scores) == ["bleu", "chrf", "bleu_moses_lower"]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        assert scores[name].score == pytest.approx(metric.corpus_score(PREDICTIONS, [REFERENCES]).score)
        assert scores[name].signature == str(metric.get_signature())
    assert "tok:13a" in scores["bleu"].signature


@pytest.mark.parametrize(
    ("language", "texts", "signature"),
    [
        *((code, CHINESE, "tok:zh") for code in ("zh", "zho", "cmn", "yue", "wuu")),
        *((code, JAPANESE, "tok:char") for code in ("ja", "jpn", "tha", "bod")),
        ("th", ["สุนัขสองตัววิ่งในหิมะ", "เด็กชายนั่งอยู่"], "tok:char"),
        ("de", ["Hund", "Zwei Katzen"], "eff:yes"),
    ],
)
def test_unspaced_and_short_texts_are_scored(language: str, texts: list[str], signature: str) -> None:
    bleu = text_scores(texts, texts, language)["bleu"]
    assert bleu.score == pytest.approx(100)
    assert signature in bleu.signature
    assert 0 < text_scores([texts[0], texts[1][:-2]], texts, language)["bleu"].score < 100
    assert sentence_bleu(texts, texts, language) == pytest.approx(100)


def test_bleu_reference_of_4_tokens_has_4_grams() -> None:
    for reference, order in (("Ein Hund rennt", "eff:yes"), ("Ein Hund rennt.", "eff:no")):
        scores = text_scores(["Ein Hund schläft."], [reference], "de")
        assert order in scores["bleu"].signature
        assert order in scores["bleu_moses_lower"].signature


@pytest.mark.parametrize("language", ["zh", "zho", "ja", "jpn", "lao", "khm", "mya"])
def test_unspaced_languages_have_no_moses_score(language: str) -> None:
    assert list(text_scores(["二匹の犬"], ["二匹の犬が走る"], language)) == ["bleu", "chrf"]


def test_moses_bleu_equals_sacrebleu_on_tokens() -> None:
    predicted = ["zwei hunde laufen durch den schnee .", "ein mädchen sieht zwei hunde , die rennen"]
    expected = ["zwei hunde rennen durch den schnee .", "ein mädchen sieht zwei hunde , die rennen ."]
    predicted, expected = [*predicted, "ein rot-weißer hut", ""], [*expected, "ein rot-weißer hut", "ein hund"]
    score = sacrebleu.corpus_bleu(predicted, [expected], tokenize="none", force=True).score
    scores = text_scores(PREDICTIONS, REFERENCES, "de")
    assert 0 < scores["bleu"].score < score < 100  # Lowercasing hides one error.
    assert scores["bleu_moses_lower"].score == pytest.approx(score)
    assert "case:lc" in scores["bleu_moses_lower"].signature
    assert "tok:moses-norm-de-sacremoses-" in scores["bleu_moses_lower"].signature


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("en", "A boy sits on a woman's shoulders.", "a boy sits on a woman 's shoulders ."),
        ("en", "Two dirt-bikes & a <toy>, 4' wide", "two dirt-bikes & a < toy > , 4 ' wide"),
        ("en", "It costs 5,300 (or 5.3) at 3 p.m.", "it costs 5,300 ( or 5.3 ) at 3 p.m."),
        ("de", "Ein Schild sagt: „Kommt herein …“", 'ein schild sagt : " kommt herein ... "'),
        ("fr", "L'homme d’à côté, au chapeau bleu", "l' homme d' à côté , au chapeau bleu"),
        ("xx", "Nobody's language, Mr. X.", "nobody ' s language , mr. x ."),
        ("de", "", ""),
    ],
)
def test_moses_has_the_tokens_of_multi30k(language: str, text: str, tokens: str) -> None:
    """Hyphens stay, nothing is escaped, quotes are straight, and apostrophes follow the language."""
    assert moses([text], language) == [tokens]
