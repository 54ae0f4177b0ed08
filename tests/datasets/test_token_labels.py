"""Labels of words and residues: files of one's own, NCBI disease, WNUT17 and protein structures."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from unifier.data.source import SPLITS
from unifier.datasets import WNUT17, NCBIDisease, ProteinSS, WordTable
from unifier.datasets.protein_ss import PARTS
from unifier_tokenizers import InputError


def write_sentences(path: Path, count: int, label: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    sentences = [f"{path.stem}\tO\n{k}é\tB-{label}\nend\tI-{label}\n{end}" for k in range(count)]
    path.write_text("".join(sentences))
    return path


def word_table(folder: Path) -> WordTable:
    return WordTable(write_sentences(folder / "words.csv", 30, "x"))


def ncbi_disease(folder: Path) -> NCBIDisease:
    for name, count in (("train", 5), ("devel", 3), ("test", 2)):
        write_sentences(folder / f"{name}.tsv", count, "Disease")
    return NCBIDisease(data=folder)


def wnut17(folder: Path) -> WNUT17:
    for name, count in (("wnut17train.conll", 5), ("emerging.dev.conll", 3), ("emerging.test.annotated", 2)):
        write_sentences(folder / name, count, "person", "\t\n")
    return WNUT17(data=folder)


def write_chains(folder: Path, mask: str = "01101") -> ProteinSS:
    folder.mkdir(parents=True)
    chains = [(f"{k}abc-A", f"MKV{'ACDEFG'[k]}W", "CHHEC", part) for k, part in enumerate([*PARTS] * 2)]
    with zipfile.ZipFile(folder / "splits.zip", "w") as archive:
        for file, row in (("sequences", 1), ("sampled", 2), ("mask", None)):
            headers = [f">{chain[0]}{f' {chain[3]}' if file == 'sampled' else ''}" for chain in chains]
            contents = [mask if row is None else chain[row] for chain in chains]
            text = "".join(f"{header}\n{text}\n" for header, text in zip(headers, contents, strict=True))
            archive.writestr(zipfile.ZipInfo(f"splits/{file}.fasta"), text)
    return ProteinSS(data=folder)


@pytest.mark.parametrize("make", [word_table, ncbi_disease, wnut17, write_chains])
def test_sources_of_token_labels_keep_contract(
    make: Callable[[Path], object], check_source: Callable[..., None], tmp_path: Path
) -> None:
    check_source(make, named=make is not word_table)


def test_words_have_their_labels(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n \t\nPeter\tB-PER\n")
    source = WordTable(*[tmp_path / "a.conll"] * 3)
    assert list(source.split("test")) == [(("EU", "rejects"), ("B-ORG", "O")), (("Peter",), ("B-PER",))]
    assert [source.split("val").example_id(k).rpartition(", ")[2] for k in (0, 1)] == ["line 3", "line 7"]
    assert (source.labels, source.copies) == (("B-ORG", "B-PER", "O"), 4)
    held_out = WordTable(write_sentences(tmp_path / "b.conll", 40, "x"))
    assert [len(held_out.split(name)) for name in SPLITS] == [32, 4, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "no sentences"), ("a\n", "line 1: a word"), ("a\tO\n\tO\n", "line 2"), ("a\tO\nb\t\n", "line 2.*label")],
)
def test_broken_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(content)
    with pytest.raises(InputError, match=rf"a\.conll.*{message}"):
        WordTable(tmp_path / "a.conll").split("train")


def test_labels_that_train_lacks_are_named(tmp_path: Path) -> None:
    files = [write_sentences(tmp_path / f"{name}.conll", 3, name[0]) for name in ("xa", "xb", "y")]
    with pytest.raises(InputError, match=r"y\.conll.*line 1 has the label B-y"):
        WordTable(*files).split("train")


def test_residues_without_structure_have_no_label(tmp_path: Path) -> None:
    source = write_chains(tmp_path / "files")
    structure = (None, "H", "H", None, "C")
    assert list(source.split("train")) == [("MKVAW", structure), ("MKVEW", structure)]
    assert [len(source.split(name)) for name in SPLITS] == [2, 2, 2]
    with pytest.raises(InputError, match="chain 0abc-A"):
        write_chains(tmp_path / "short", mask="0110").split("val")
