"""Multi30k: captions of images from Flickr, in English, German, French and Czech."""

from functools import cached_property
from pathlib import Path
from typing import final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.source import NO_SCORE_RANGE, ScoreRange, SplitName
from unifier.datasets.parallel_text import ParallelText
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

MULTI30K_HOME = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)

MULTI30K_FILES = {
    "test_2016_flickr.cs.gz": RemoteFile(22572, "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1"),
    "test_2016_flickr.de.gz": RemoteFile(22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    "test_2016_flickr.en.gz": RemoteFile(21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    "test_2016_flickr.fr.gz": RemoteFile(22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
    "test_2017_flickr.de.gz": RemoteFile(21471, "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee"),
    "test_2017_flickr.en.gz": RemoteFile(19138, "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074"),
    "test_2017_flickr.fr.gz": RemoteFile(20434, "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496"),
    "train.cs.gz": RemoteFile(593827, "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077"),
    "train.de.gz": RemoteFile(637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz": RemoteFile(568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.fr.gz": RemoteFile(604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    "val.cs.gz": RemoteFile(22096, "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc"),
    "val.de.gz": RemoteFile(24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz": RemoteFile(21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.fr.gz": RemoteFile(23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
}

MULTI30K_LANGUAGES = ("en", "de", "fr", "cs")

MULTI30K_TESTS = ("2016", "2017")

MULTI30K_REFERENCES = {
    ("en", "de", "2016"): (41.02, "transformer_tiny, beam 5, lower-cased and tokenized BLEU: Wu et al. 2021"),
    ("de", "en", "2016"): (36.52, "transformer, word vocabulary, tokenized BLEU: bentrevett/pytorch-seq2seq"),
}
"""Published BLEU scores of systems, for some languages and test sets.

The keys are (input language, target language, year of the test set). The scores are BLEU of tokenized texts, which is
similar to sacreBLEU of raw texts.
"""


@final
class Multi30k:
    """Multi30k: captions and their translations, with 29,000 pairs for train, 1,014 for val and 1,000 for test.

    The input is a raw text, and the target is its translation. The data set may only be used for non-commercial
    research.

    Source: Elliott, Frank, Sima'an and Specia, "Multi30K: Multilingual English-German Image Descriptions", 2016;
    task 1 of github.com/multi30k/dataset.
    """

    name = "multi30k"

    def __init__(
        self, source: str = "en", target: str = "de", *, test: str = "2016", data: str | Path | None = None
    ) -> None:
        """Choose the languages and the test set.

        Args:
            source: Language of the input: en, de, fr or cs.
            target: Language of the target.
            test: Year of the Flickr test set, 2016 or 2017. The test set of 2017 has no Czech texts.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.source_language = check_choice("language", source, MULTI30K_LANGUAGES)
        self.target_language = check_choice("language", target, MULTI30K_LANGUAGES)
        check_choice("test", test, MULTI30K_TESTS)
        if test == "2017" and "cs" in (source, target):
            raise InputError("test=2017: this test set has no Czech texts; give test=2016, or two of en, de and fr")
        self._test, self._data = test, data
        self.score_range = ScoreRange(
            "bleu", 0.0, *MULTI30K_REFERENCES.get((source, target, test), (None, NO_SCORE_RANGE))
        )

    def split(self, name: SplitName) -> Examples[int]:
        """Return the pairs of one split in the order of the files. Missing files are downloaded first."""
        return self._texts.split(name)

    @property
    def sha256(self) -> str:
        """The hash of the six files: train, val and test in both languages."""
        return self._texts.sha256

    @cached_property
    def _texts(self) -> ParallelText:
        languages = (self.source_language, self.target_language)
        stems = ("train", "val", f"test_{self._test}_flickr")
        names = [f"{stem}.{language}.gz" for stem in stems for language in languages]
        folder = ensure_files(self.name, MULTI30K_HOME, {name: MULTI30K_FILES[name] for name in names}, self._data)
        train, val, test = ((folder / names[k], folder / names[k + 1]) for k in (0, 2, 4))
        return ParallelText(train, val, test, name=self.name)
