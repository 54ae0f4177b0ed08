"""Scores are sacreBLEU's; Moses tokens are those of Multi30k's own files."""

import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from unifier.heads.text_generation import check_language
from unifier.heads.text_metrics import moses, sentence_bleu, text_scores
from unifier_tokenizers import InputError

WRITTEN = ["Zwei Hunde laufen durch den Schnee.", "ein Mädchen sieht zwei Hunde, die rennen", "Ein rot-weißer Hut", ""]
REFERENCES = [
    "Zwei Hunde rennen durch den Schnee.",
    "Ein Mädchen sieht zwei Hunde, die rennen.",
    "Ein rot-weißer Hut",
    "Ein Hund",
]
REFERENCE_TOKENS = [  # cut by hand
    "zwei hunde rennen durch den schnee .",
    "ein mädchen sieht zwei hunde , die rennen .",
    "ein rot-weißer hut",
    "ein hund",
]
WRITTEN_TOKENS = [
    "zwei hunde laufen durch den schnee .",
    "ein mädchen sieht zwei hunde , die rennen",
    "ein rot-weißer hut",
    "",
]


def test_cased_scores_are_sacrebleus_with_its_signatures() -> None:
    found = text_scores(WRITTEN, REFERENCES, "de")
    assert list(found) == ["bleu", "chrf", "bleu_moses_lower"]
    assert found["bleu"].score == pytest.approx(sacrebleu.corpus_bleu(WRITTEN, [REFERENCES]).score)
    assert found["chrf"].score == pytest.approx(sacrebleu.corpus_chrf(WRITTEN, [REFERENCES]).score)
    for name, peer in (("bleu", BLEU()), ("chrf", CHRF())):
        peer.corpus_score(WRITTEN, [REFERENCES])
        assert found[name].signature == str(peer.get_signature())
    assert "tok:13a" in found["bleu"].signature


@pytest.mark.parametrize(
    ("language", "texts", "signed"),
    [
        ("zh", ["两只狗在雪地里奔跑。", "一个男孩坐在肩膀上。"], "tok:zh"),
        ("ja", ["二匹の犬が雪の中を走る。", "男の子が座っている。"], "tok:char"),
        ("th", ["สุนัขสองตัววิ่งในหิมะ", "เด็กชายนั่งอยู่"], "tok:char"),
        *((code, ["两只狗在雪地里奔跑。", "一个男孩坐在肩膀上。"], "tok:zh") for code in ("zho", "cmn", "yue", "wuu")),
        *((code, ["二匹の犬が雪の中を走る。", "男の子が座っている。"], "tok:char") for code in ("jpn", "tha", "bod")),
        ("de", ["Hund", "Zwei Katzen"], "eff:yes"),
    ],
)
def test_texts_without_spaces_or_of_few_words_score_what_they_are_worth(
    language: str, texts: list[str], signed: str
) -> None:
    found = text_scores(texts, texts, language)["bleu"]
    assert found.score == pytest.approx(100)
    assert signed in found.signature
    assert 0 < text_scores([texts[0], texts[1][:-2]], texts, language)["bleu"].score < 100
    assert sentence_bleu(texts, texts, language) == pytest.approx(100)


@pytest.mark.parametrize("language", ["zh", "zho", "ja", "jpn", "lao", "khm", "mya"])
def test_moses_scores_no_language_that_it_cannot_cut(language: str) -> None:
    assert list(text_scores(["二匹の犬"], ["二匹の犬が走る"], language)) == ["bleu", "chrf"]


def test_bleu_on_moses_tokens_is_sacrebleus_on_tokens_cut_by_hand() -> None:
    found = text_scores(WRITTEN, REFERENCES, "de")
    expected = sacrebleu.corpus_bleu(WRITTEN_TOKENS, [REFERENCE_TOKENS], tokenize="none", force=True).score
    assert 0 < found["bleu"].score < expected < 100  # small letters hide one mistake
    assert found["bleu_moses_lower"].score == pytest.approx(expected)
    assert "case:lc" in found["bleu_moses_lower"].signature
    assert "tok:moses-norm-de-sacremoses-" in found["bleu_moses_lower"].signature


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
def test_moses_tokens_are_those_of_the_literature(language: str, text: str, tokens: str) -> None:
    """The rules Multi30k's own tokens show: hyphens kept, nothing escaped, quotes straight, apostrophes by language."""
    assert moses([text], language) == [tokens]


@pytest.mark.parametrize("language", ["english", "E", "DE", "", "d1"])
def test_a_language_is_a_code(language: str) -> None:
    with pytest.raises(InputError, match=f"language='{language}': a code of ISO 639 in small letters is expected"):
        check_language(language)
