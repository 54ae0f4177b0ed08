"""Functions that create a data set from a recipe's setting `data`, which is a name or the path of your own data."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, get_args

from unifier.data.arrow_files import TABLES, find_split_files, has_column
from unifier.data.dataset import draw_examples
from unifier.data.packed import PackedSource
from unifier.data.source import LabeledSource
from unifier.datasets.abc_tunes import NottinghamTunes
from unifier.datasets.amazon_beauty import AmazonBeauty
from unifier.datasets.arrow_tables import INPUT_COLUMNS, ArrowTable, ArrowTexts, check_number_columns
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.boxes import BCCD, BoxTable
from unifier.datasets.cifar10 import CIFAR10
from unifier.datasets.coded_texts import CodedTexts
from unifier.datasets.digits import Digits
from unifier.datasets.emotify import Emotify
from unifier.datasets.esc import ESC
from unifier.datasets.fma import FMA
from unifier.datasets.fsdd import FSDD, SPEAKERS
from unifier.datasets.gtzan import GTZAN
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.jsb_notes import JSBNotes
from unifier.datasets.long_text import LongTextFile, LongWikiArticles, TinyShakespeare
from unifier.datasets.midi_folder import MidiFolder
from unifier.datasets.mnist import MNIST
from unifier.datasets.movielens import MovieLensSmall
from unifier.datasets.multi30k import MULTI30K_LANGUAGES
from unifier.datasets.nuclei import OBJECT_LABELS, MaskFolder, Nuclei
from unifier.datasets.number_table import NumberTable
from unifier.datasets.plain_text import (
    MovieReviews,
    Multi30kSentences,
    PlainText,
    SQuADContexts,
    TextFile,
    WikiArticles,
)
from unifier.datasets.polyphonic_music import Collection, PolyphonicMusic
from unifier.datasets.protein_ss import ProteinSS
from unifier.datasets.question_answering import AnswerKind, QuestionFile, SQuADDev
from unifier.datasets.scattered_pictures import ScatteredClothes
from unifier.datasets.series_windows import SERIES
from unifier.datasets.summaries import SciTLDR, SummaryKind, TextsWithSummaries
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.datasets.text_classification import SST2, TREC, TextTable
from unifier.datasets.token_labels import WNUT17, NCBIDisease, WordTable
from unifier.datasets.torchvision_pictures import TORCHVISION, TorchvisionPictures
from unifier.datasets.voice_prompts import PromptLanguage, VoicePrompts
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

IMAGE_DATASETS: dict[str, Callable[[], LabeledSource]] = {
    "embedded": Digits,
    "mnist": MNIST,
    "fashion_mnist": partial(MNIST, "fashion_mnist"),
    "cifar10": CIFAR10,
    "cifar10_jpg": partial(CIFAR10, jpeg=True),
}

AUDIO_DATASETS = ("embedded", "emotify", "fma", "gtzan", "fsdd", "esc10", "esc50")

TEXT_DATASETS: dict[str, Callable[[], LabeledSource]] = {"sst2": SST2, "trec": TREC}

TOKEN_DATASETS: dict[str, Callable[[], LabeledSource]] = {
    "ncbi_disease": NCBIDisease,
    "wnut17": WNUT17,
    "protein_ss": ProteinSS,
}

PLAIN_TEXT_DATASETS: dict[str, Callable[..., PlainText]] = {
    "movie_reviews": MovieReviews,
    "wiki_articles": WikiArticles,
    "squad_dev": SQuADContexts,
}

LONG_TEXTS: dict[str, Callable[[], TinyShakespeare | LongWikiArticles | NottinghamTunes]] = {
    "tinyshakespeare": TinyShakespeare,
    "wiki_articles": LongWikiArticles,
    "nottingham_abc": NottinghamTunes,
}

ITEM_DATASETS: dict[str, Callable[[], AmazonBeauty | MovieLensSmall]] = {
    "amazon_beauty": AmazonBeauty,
    "movielens_small": MovieLensSmall,
}

MAX_NAMED_SIDE = 32
"""Longest side, in pixels, of the images in all data sets of `IMAGE_DATASETS`."""


PACKED = "packed:"
"""Beginning of the setting `data` for a packed data set, before the folder or URL."""


def refuse_settings(data: str, **given: object) -> None:
    """Raise InputError if a setting is given that does not apply to tables and to torchvision's data sets.

    Args:
        data: The setting `data`.
        given: The settings, which must be None.
    """
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name}={value}: {data} has its own splits and columns; leave it out")


def open_packed(data: str, **given: object) -> PackedSource:
    """Open the packed data set of a setting `data`.

    Args:
        data: "packed:" and a folder or URL.
        given: Settings that only apply to data that are not packed, and must be None.

    Raises:
        InputError: The data set cannot be opened, or a setting is given.
    """
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name}={value}: packed data are prepared already; leave it out, or pack the data with it"
            )
    return PackedSource(data.removeprefix(PACKED))


def modality_of(data: str) -> Literal["text", "image", "audio", "series"]:
    """Return the modality of a data set without labels, given its name or its path.

    A folder contains pictures, a table in CSV or TSV lists sounds, and every other file is a text. The name "embedded"
    means pictures.
    """
    if data.startswith(PACKED):
        return open_packed(data).modality
    if data.startswith(TORCHVISION):
        return "image"
    if data.startswith(TABLES):
        (file, *_) = find_split_files(data)["train"]
        kinds: tuple[Literal["image", "audio"], ...] = ("image", "audio")
        for kind in kinds:
            if has_column(file, INPUT_COLUMNS[kind]):
                return kind
        return "text"
    if data in IMAGE_DATASETS:
        return "image"
    if data in SERIES:
        return "series"
    if data in AUDIO_DATASETS or data.endswith((".csv", ".tsv")):
        return "audio"
    return "image" if os.path.isdir(data) else "text"  # noqa: PTH112  Path.is_dir fails for long names.


def create_image_dataset(
    data: str,
    *,
    fold: int | None = None,
    size: int | None = None,
    examples: int | None = None,
    allow_outside: bool = False,
) -> LabeledSource:
    """Create an image data set from its name, or from the path of a folder.

    Args:
        data: A name in `IMAGE_DATASETS`, the path of a folder with your own images, or a word such as "parquet:DIR".
        fold: The fold to test on. Only your own folder may have folds.
        size: Maximum length of the longer side in pixels. Larger images of your own folder are reduced.
        examples: Number of training images, drawn at random. None means all.
        allow_outside: True if links in your own folder may lead outside the folder.

    Raises:
        InputError: `data` is neither a name nor an existing path, or `fold`, `size` or `examples` does not apply to the
            data set.
    """
    if data.startswith(PACKED):
        source = open_packed(data, fold=fold, examples=examples)
        packed: int | None = getattr(getattr(source, "reader", None), "size", None)
        if source.data not in (None, *IMAGE_DATASETS) and packed != size:
            raise InputError(f"size={size}: {data} has pictures of size={packed}; give the same size, or pack again")
        return source
    if examples is not None:
        return draw_examples(create_image_dataset(data, fold=fold, size=size, allow_outside=allow_outside), examples)
    if data.startswith((*TABLES, TORCHVISION)):
        refuse_settings(data, fold=fold)
        if data.startswith(TORCHVISION):
            return TorchvisionPictures(data.removeprefix(TORCHVISION), size=size)
        return ArrowTable(data, "image", size=size)
    if data not in IMAGE_DATASETS:
        path = _existing_path(data, IMAGE_DATASETS, (*TABLES, TORCHVISION))
        return ImageFolder(path, fold=fold, size=size, allow_outside=allow_outside)
    if fold is not None:
        raise InputError(f"fold={fold}: {data} has no folds, so give no fold")
    if size is not None and size < MAX_NAMED_SIDE:
        raise InputError(
            f"size={size}: only images in your own folder can be reduced; give at least {MAX_NAMED_SIDE} for "
            f"data={data}"
        )
    return IMAGE_DATASETS[data]()


def create_audio_dataset(
    data: str,
    *,
    target: Literal["genre", "tags"] = "genre",
    fold: int | None = None,
    allow_outside: bool = False,
) -> LabeledSource:
    """Create an audio data set from its name, or from the path of a table or folder.

    Args:
        data: A name in `AUDIO_DATASETS`, or the path of a table or folder with your own sounds.
        target: "genre" for one label per sound, or "tags" for any number of tags per sound.
        fold: The fold to test on. None means the first fold. For FSDD, a fold is a speaker, and None means the official
            split.
        allow_outside: True if your own table may name, or your own folder may link, files outside its folder.

    Raises:
        InputError: `data` is neither a name nor an existing path, or the data set does not have tags or folds.
    """
    if data.startswith(PACKED):
        return open_packed(data, fold=fold)
    if data.startswith(TABLES):
        refuse_settings(data, fold=fold, target="tags" if target == "tags" else None)
        return ArrowTable(data, "audio")
    if target == "tags" and data in ("gtzan", "fsdd", "esc10", "esc50"):
        raise InputError(f"target=tags: {data} has one label per sound; give target=genre, or data=emotify or fma")
    if fold is not None and data in ("embedded", "fma", "gtzan"):
        raise InputError(f"fold={fold}: {data} has no folds, so give no fold")
    match data:
        case "embedded":
            return SyntheticMusic(target=target)
        case "emotify":
            return Emotify(target, fold=0 if fold is None else fold)
        case "fma":
            return FMA(target)
        case "gtzan":
            return GTZAN()
        case "fsdd":
            return FSDD(speaker=None if fold is None else SPEAKERS[check_choice("fold", fold, range(len(SPEAKERS)))])
        case "esc10" | "esc50":
            return ESC(data, fold=1 if fold is None else fold)
        case _:
            path = _existing_path(data, AUDIO_DATASETS, TABLES)
            kind: Literal["label", "tags"] = "tags" if target == "tags" else "label"
            return AudioFolder(path, target=kind, fold=fold, allow_outside=allow_outside)


def create_text_dataset(data: str, *, text: str | None = None, label: str | None = None) -> LabeledSource:
    """Create a text classification data set from its name, or from the path of a table.

    Args:
        data: A name in `TEXT_DATASETS`, or the path of your own CSV or TSV file.
        text: Name of the column with the texts in your own file. None means "text".
        label: Name of the column with the labels in your own file. None means "label".

    Raises:
        InputError: `data` is neither a name nor an existing path, or a column is given for a data set that is not a
            table.
    """
    if data.startswith(PACKED):
        return open_packed(data, text=text, label=label)
    if data.startswith(TABLES):
        return ArrowTable(data, "text", column=text, target=label)
    if data not in TEXT_DATASETS:
        return TextTable(_existing_path(data, TEXT_DATASETS, TABLES), text=text or "text", label=label or "label")
    for setting, column in (("text", text), ("label", label)):
        if column is not None:
            raise InputError(f"{setting}={column}: {data} has no columns; give this setting only for your own table")
    return TEXT_DATASETS[data]()


def create_plain_text_dataset(data: str, *, words: int, languages: Sequence[str] = ()) -> PlainText:
    """Create a data set of plain texts from its name, or from the path of a text file.

    Args:
        data: A name in `PLAIN_TEXT_DATASETS`, or the path of your own text file in UTF-8.
        words: Number of words of an example.
        languages: Languages of the sentences of multi30k. () means all languages.

    Raises:
        InputError: `data` is neither a name nor an existing path, or it has no choice of languages.
    """
    if data == Multi30kSentences.name:
        return Multi30kSentences(languages or MULTI30K_LANGUAGES, words=words)
    if languages:
        raise InputError(f"languages={','.join(languages)}: only data={Multi30kSentences.name} has languages")
    if data.startswith(TABLES):
        return ArrowTexts(data, words=words)
    if data not in PLAIN_TEXT_DATASETS:
        return TextFile(_existing_path(data, PLAIN_TEXT_DATASETS, TABLES), words=words)
    return PLAIN_TEXT_DATASETS[data](words=words)


def create_long_text(
    data: str,
) -> LongTextFile | TinyShakespeare | LongWikiArticles | NottinghamTunes | CodedTexts | ProteinSS:
    """Create a source of texts for a language model from its name, or from the path of a text file.

    The texts of a classification data set, or of a table with the columns text and label, get their label as a control
    code. The texts of protein_ss are the residues of proteins.

    Raises:
        InputError: `data` is neither a name nor an existing path.
    """
    if data in TEXT_DATASETS or data.endswith((".csv", ".tsv")) or data.startswith(TABLES):
        return CodedTexts(create_text_dataset(data))
    if data == ProteinSS.name:
        return ProteinSS()
    return LONG_TEXTS[data]() if data in LONG_TEXTS else LongTextFile(_existing_path(data, LONG_TEXTS, TABLES))


def create_symbolic_music(data: str, *, steps_per_beat: int | None = None) -> PolyphonicMusic | JSBNotes | MidiFolder:
    """Create a data set of symbolic music from its name, or from the path of a folder with MIDI files.

    Args:
        data: The name of a `PolyphonicMusic`, "jsb_notes", or the path of a folder.
        steps_per_beat: Number of time steps per beat of your own MIDI files. None means 2.

    Raises:
        InputError: `data` is neither a name nor an existing path, or `steps_per_beat` is given with a name.
    """
    names: tuple[Collection, ...] = get_args(Collection)
    if data in (*names, JSBNotes.name) and steps_per_beat is not None:
        raise InputError(f"steps_per_beat={steps_per_beat}: {data} has its own steps; set it only for MIDI files")
    if data == JSBNotes.name:
        return JSBNotes()
    for name in names:
        if name == data:
            return PolyphonicMusic(name)
    return MidiFolder(
        _existing_path(data, (*names, JSBNotes.name)), steps_per_beat=2 if steps_per_beat is None else steps_per_beat
    )


def _existing_path(data: str, names: Iterable[str], words: Sequence[str] = ()) -> str:
    """Return the path of your own data.

    Args:
        data: The setting `data`.
        names: The names of data sets, for the message of an error.
        words: Accepted beginnings of `data` before a folder, for the message of an error.

    Raises:
        InputError: The path does not exist, or begins with a word that is not accepted.
    """
    expected = ", ".join(["an existing path", *(f"{word}DIR" for word in words)])
    if data.startswith((*TABLES, TORCHVISION, PACKED)):
        word = data.partition(":")[0]
        raise InputError(
            f"data={data}: {word}: is not possible here; give {expected}, or one of the names {', '.join(names)}"
        )
    if not data or not os.path.exists(data):  # noqa: PTH110  Path.exists would raise OSError for a name of 300 letters.
        raise InputError(f"data={data or repr('')}: give {expected}, or one of the names {', '.join(names)}")
    return data


def create_mask_dataset(data: str, *, labels: Sequence[str] = OBJECT_LABELS) -> Nuclei | MaskFolder:
    """Create a data set of pictures with masks from its name, or from the path of a folder.

    Args:
        data: "nuclei", or the path of a folder with the folders images and masks.
        labels: The names of the classes of your own masks. The first class is the background.

    Raises:
        InputError: `data` is neither a name nor an existing path, or `labels` is given with a name.
    """
    if data != Nuclei.name:
        return MaskFolder(_existing_path(data, (Nuclei.name,)), labels=labels)
    if tuple(labels) != OBJECT_LABELS:
        raise InputError(f"labels={','.join(labels)}: {data} has its own classes; set labels only for your own masks")
    return Nuclei()


def create_token_dataset(data: str, *, val: str | None = None, test: str | None = None) -> LabeledSource:
    """Create a data set with one label per word or residue, from its name or from the path of a file.

    Args:
        data: A name in `TOKEN_DATASETS`, or the path of a file in the format of CoNLL.
        val: The file with the val split of your own file.
        test: The file with the test split of your own file.

    Raises:
        InputError: `data` is neither a name nor an existing path, or `val` or `test` is given with a name.
    """
    if data.startswith(PACKED):
        return open_packed(data, val=val, test=test)
    if data.startswith(TABLES):
        refuse_settings(data, val=val, test=test)
        return ArrowTable(data, "words")
    if data not in TOKEN_DATASETS:
        return WordTable(_existing_path(data, TOKEN_DATASETS, TABLES), val, test)
    if val is not None or test is not None:
        raise InputError(f"data={data} has its own val and test splits: set val and test only with your own file")
    return TOKEN_DATASETS[data]()


def create_summary_dataset(data: str, kind: SummaryKind) -> SciTLDR | TextsWithSummaries:
    """Create a data set of texts with summaries from its name, or from the path of a file with two columns.

    Raises:
        InputError: `data` is neither a name nor an existing path.
    """
    if data == SciTLDR.name:
        return SciTLDR(kind)
    return TextsWithSummaries(data if data.startswith(TABLES) else _existing_path(data, (SciTLDR.name,), TABLES), kind)


def create_box_dataset(data: str) -> BCCD | ScatteredClothes | BoxTable:
    """Create a data set of pictures with boxes from its name, or from the path of a table.

    Raises:
        InputError: `data` is neither a name nor an existing path.
    """
    if data == BCCD.name:
        return BCCD()
    if data == ScatteredClothes.name:
        return ScatteredClothes()
    return BoxTable(_existing_path(data, (BCCD.name, ScatteredClothes.name)))


def create_question_dataset(data: str, kind: AnswerKind) -> SQuADDev | QuestionFile:
    """Create a data set of questions with answers from its name, or from the path of a file (see `QuestionFile`).

    Raises:
        InputError: `data` is neither a name nor an existing path.
    """
    if data == SQuADDev.name:
        return SQuADDev(kind)
    return QuestionFile(data if data.startswith(TABLES) else _existing_path(data, (SQuADDev.name,), TABLES), kind)


def create_number_dataset(
    data: str, columns: Sequence[str], *, text: str | None = None, fold: int | None = None
) -> Emotify | NumberTable | ArrowTable:
    """Create a data set whose targets are numbers, from its name, or from the path of a table.

    Args:
        data: "emotify", the path of a CSV or TSV file, or a word such as "parquet:DIR".
        columns: Names of the columns with the numbers in your own table.
        text: Name of the column with the texts in your own table. None means pictures or sounds.
        fold: The fold of emotify to test on. None means the first fold.

    Raises:
        InputError: `data` is neither a name nor an existing path, or a setting does not apply to the data.
    """
    if data == "emotify":
        if columns or text:
            raise InputError("data=emotify has its own numbers: set columns and text only with your own table")
        return Emotify("shares", fold=fold or 0)
    if fold is not None:
        raise InputError(f"fold={fold}: a table has no folds; give a column split in the table")
    if data.startswith(TABLES):
        modality = "text" if text is not None else modality_of(data)
        kind = check_choice("modality", modality, ("text", "image", "audio"))
        return ArrowTable(data, kind, column=text, numbers=check_number_columns(columns, text))
    return NumberTable(_existing_path(data, ("emotify",), TABLES), columns, text=text)


def create_item_dataset(data: str) -> AmazonBeauty | MovieLensSmall:
    """Create a data set of item sequences from its name in `ITEM_DATASETS`, or raise InputError for another name."""
    return ITEM_DATASETS[check_choice("data", data, tuple(ITEM_DATASETS))]()


def create_speech_dataset(data: str) -> VoicePrompts | ArrowTable:
    """Create a data set of spoken sentences with their texts.

    Args:
        data: "voice_prompts" (English), "voice_prompts_fr" (French), or a word such as "parquet:DIR".

    Raises:
        InputError: `data` is no such name or word.
    """
    if data.startswith(TABLES):
        return ArrowTable(data, "speech")
    languages: dict[str, PromptLanguage] = {"voice_prompts": "en", "voice_prompts_fr": "fr"}
    if data not in languages:
        folders = " or ".join(f"{word}DIR" for word in TABLES)
        raise InputError(f"data={data}: give fsdd_strings, {', '.join(languages)}, {folders}")
    return VoicePrompts(languages[data])
