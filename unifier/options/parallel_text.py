"""Settings of text pairs."""

from dataclasses import dataclass, replace
from typing import final

from unifier.data.dataset import draw_examples
from unifier.data.source import Source
from unifier.data.text_files import Duplicates
from unifier.datasets.arrow_tables import ArrowTable
from unifier.datasets.factory import PACKED, TABLES, open_packed, refuse_settings
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.language_pairs import LanguagePairs, language_codes
from unifier.datasets.multi30k import MULTI30K_LANGUAGES, Multi30k
from unifier.datasets.parallel_text import ParallelText, Texts, WithExtraPairs
from unifier_tokenizers import InputError

LANGUAGES: dict[str, tuple[str, ...]] = {"embedded": ("en", "fr"), "multi30k": MULTI30K_LANGUAGES}
"""The languages of the data sets that have several pairs of languages."""


@final
@dataclass(frozen=True)
class ParallelTextConfig:
    """Settings for the files, the languages and the cleaning of text pairs."""

    data: str = "embedded"
    """Pairs: embedded (a grammar), multi30k, a file of tab-separated pairs, two files (a,b), .tmx, or parquet:DIR."""
    source: str = "en"
    """Language of the input, several languages such as en,de, or all."""
    target: str = "fr"
    """Language of the output; for several languages, such as de,fr or all, an input begins with its code <de>."""
    val: str | None = None
    """Validation pairs, in one of the formats of `data`; None means that pairs of `data` are held out."""
    test: str | None = None
    """Test pairs, or the year of multi30k's test pairs (2016, 2017); None means that pairs of `data` are held out."""
    extra: str | None = None
    """File with additional training pairs, in one of the formats of `data`."""
    length_ratio: float | None = None
    """Drop a training pair of your own files if the lengths of the two texts differ by more than this factor."""
    duplicates: Duplicates = "keep"
    """Keep or drop repeated training pairs of your own files."""
    examples: int | None = None
    """Number of training pairs of each pair of languages, drawn at random; None means all."""

    def build(self) -> Source:
        """Open the pairs, or raise InputError if an option does not apply to the data."""
        directions = self.directions
        if not self.codes:
            return self._build() if self.examples is None else draw_examples(self._build(), self.examples)
        if self.data not in LANGUAGES or self.extra:
            raise InputError(
                f"source={self.source}, target={self.target}: only data={' and data='.join(LANGUAGES)} without `extra` "
                "have several pairs of languages; give one source and one target"
            )
        return LanguagePairs(
            {(source, target): replace(self, source=source, target=target).build() for source, target in directions}
        )

    def _build(self) -> Source:
        if self.data.startswith(PACKED):
            given = {name: getattr(self, name) for name in ("val", "test", "extra", "length_ratio", "examples")}
            return open_packed(self.data, **given, duplicates=None if self.duplicates == "keep" else self.duplicates)
        if self.data.startswith(TABLES):
            given = {name: getattr(self, name) for name in ("val", "test", "extra", "length_ratio")}
            refuse_settings(self.data, **given, duplicates=None if self.duplicates == "keep" else self.duplicates)
            return ArrowTable(self.data, "pair", languages=(self.source, self.target))
        if self.data in ("embedded", "multi30k"):
            if not self.extra and (self.length_ratio is not None or self.duplicates == "drop"):
                raise InputError(
                    f"length_ratio and duplicates are for your own files only: leave both out with data={self.data}"
                )
            if self.val is not None or (self.test is not None and self.data == "embedded"):
                raise InputError(
                    f"data={self.data} has its own val and test splits: set val and test only with your own files, "
                    "or test=2017 with multi30k"
                )
        pairs: Source
        match self.data:
            case "embedded":
                pairs = GrammarPairs(source=self.source, target=self.target)
            case "multi30k":
                pairs = Multi30k(self.source, self.target, test=self.test or "2016")
            case _:
                pairs = self._files(self.data, self.val, self.test)
        return WithExtraPairs(pairs, self._files(self.extra)) if self.extra else pairs

    @property
    def name(self) -> str:
        """The name of the task."""
        return "languages" if self.codes else f"{self.source}-{self.target}"

    @property
    def language(self) -> str:
        """The code of the output language, or "mul" for several pairs of languages (ISO 639-2)."""
        return "mul" if self.codes else self.target

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the output languages, such as "<de>". A single pair of languages has no codes."""
        directions = self.directions
        is_single = directions == [(self.source, self.target)]
        return () if is_single else language_codes([target for _, target in directions])

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The pairs of an input language and another output language, or raise InputError if there is no pair."""
        if not any("," in languages or languages == "all" for languages in (self.source, self.target)):
            return [(self.source, self.target)]
        sources, targets = (
            LANGUAGES.get(self.data, ()) if languages == "all" else tuple(dict.fromkeys(languages.split(",")))
            for languages in (self.source, self.target)
        )
        directions = [(source, target) for source in sources for target in targets if source != target]
        if not directions:
            raise InputError(f"source={self.source}, target={self.target}: give at least two different languages")
        return directions

    def _files(self, train: str, val: str | None = None, test: str | None = None) -> ParallelText:
        return ParallelText(
            _split_pair(train),
            val and _split_pair(val),
            test and _split_pair(test),
            languages=(self.source, self.target),
            length_ratio=self.length_ratio,
            duplicates=self.duplicates,
        )


def _split_pair(files: str) -> Texts:
    """Return the two files before and after the comma, or the only file if there is no comma."""
    source, comma, target = files.partition(",")
    return (source, target) if comma else files
