"""Secondary structure of proteins: a class for each residue of a chain."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import hash_files, read_archive
from unifier.data.source import SPLITS, Example, ScoreRange, SplitName
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

PROTEIN_HOME = (
    "https://raw.githubusercontent.com/J-SNACKKB/FLIP/62cace8735f5610e2743cf06ce0f944b37fffaa6/"
    "splits/secondary_structure/"
)

ARCHIVE = "splits.zip"

PROTEIN_FILES = {ARCHIVE: RemoteFile(2321037, "2e9bbbfd18a055bcac7edd4e059a6bf4bb35ca3ad8f8fa4fc3106422652a4726")}

PARTS: dict[str, SplitName] = {
    "SET=train VALIDATION=False": "train",
    "SET=train VALIDATION=True": "val",
    "SET=test VALIDATION=False": "test",
}
"""The split for the header of a chain in sampled.fasta."""


class Chain(NamedTuple):
    """A chain of residues with the class of each residue."""

    name: str
    residues: str
    """The residues as letters."""
    structure: str
    """The class of each residue: H (helix), E (strand) or C (coil)."""
    resolved: str
    """For each residue, "1" if its structure is known, else "0"."""


@final
class ProteinSS:
    """Secondary structure of proteins: 9,712 chains for train, 1,080 for val and 364 for test.

    The input is a text with one letter per residue. The target has the label C, E or H for each residue, or None for a
    residue without a known structure. Test contains structures that were released later, with less than 20 % of their
    residues in common with train.

    Source: Klausen et al., "NetSurfP-2.0", 2019, as prepared by github.com/J-SNACKKB/FLIP.
    """

    name = "protein_ss"
    labels = ("C", "E", "H")
    license = "AFL 3.0"
    score_range = ScoreRange("accuracy", 100 / 3, 60.1, "sum of log-odds over 17 residues, measured on these splits")

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[Chain]:
        """Return the chains of one split in the order of the file."""
        return Examples(self._chains[check_choice("split", name, SPLITS)], _read, self._name_of, _target, _residues)

    @cached_property
    def sha256(self) -> str:
        """The hash of the archive."""
        return hash_files({ARCHIVE: self._path})

    @property
    def _path(self) -> Path:
        return ensure_files(self.name, PROTEIN_HOME, PROTEIN_FILES, self._data) / ARCHIVE

    def _name_of(self, chain: Chain) -> str:
        return f"{self._path}, chain {chain.name}"

    @cached_property
    def _chains(self) -> dict[SplitName, list[Chain]]:
        archive = read_archive(self._path)
        files = [self._path / "splits" / f"{name}.fasta" for name in ("sequences", "sampled", "mask")]
        if missing := [file.name for file in files if file not in archive]:
            raise InputError(f"{self._path} has no {', '.join(missing)}: use the original archive")
        sequences, sampled, masks = (dict(_read_fasta(archive[file].decode("latin-1"))) for file in files)
        residues, resolved = ({name.split()[0]: text for name, text in part.items()} for part in (sequences, masks))
        chains: dict[SplitName, list[Chain]] = {split: [] for split in SPLITS}
        for header, structure in sampled.items():
            name, _, part = header.partition(" ")
            chain = Chain(name, residues.get(name, ""), structure, resolved.get(name, ""))
            if part not in PARTS or not len(chain.residues) == len(structure) == len(chain.resolved):
                raise InputError(
                    f"{self._path}, chain {name}: a split, and as many classes and mask digits as residues are expected"
                )
            chains[PARTS[part]].append(chain)
        return chains


def _read_fasta(text: str) -> Iterator[tuple[str, str]]:
    """Yield the header and the content of each entry of a FASTA file."""
    for entry in text.split(">")[1:]:
        header, *lines = entry.splitlines()
        yield header, "".join(lines)


def _read(chain: Chain) -> Example:
    return Example(chain.residues, _target(chain))


def _target(chain: Chain) -> tuple[str | None, ...]:
    pairs = zip(chain.structure, chain.resolved, strict=True)
    return tuple(label if known == "1" else None for label, known in pairs)


def _residues(chain: Chain) -> str:
    return chain.residues
