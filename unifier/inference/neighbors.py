"""The nearest words in a model's table of word vectors or subword vectors, and analogies such as king - man + woman."""

import csv
import difflib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, TextIO, final

import torch
from torch.nn import functional

from unifier.inference.model import Model
from unifier_tokenizers import InputError, Mixture, PretrainedTextTokenizer, SubwordTokenizer, WordTokenizer

DEFAULT_COUNT = 10
"""Default number of nearest words."""

TEXT_TOKENIZERS = SubwordTokenizer | WordTokenizer | PretrainedTextTokenizer
"""The tokenizers with a table of words or subwords."""


@final
class Neighbor(NamedTuple):
    """A word, and the cosine of the angle between its vector and the vector of the query."""

    word: str
    cosine: float


@final
class Query(NamedTuple):
    """A sum of word vectors. Each word has the sign 1 or -1."""

    text: str
    terms: tuple[tuple[str, int], ...]


@final
class VectorTable:
    """The embedding table of a model's tokenizer for texts. Special entries and inner parts of words are left out.

    In a mixture, the table belongs to the first member that reads texts.
    """

    def __init__(self, model: Model, task: str) -> None:
        """Store the table.

        Raises:
            InputError: The tokenizer of the task has no table of words or subwords.
        """
        tokenizer = model.tasks[task].tokenizer
        if isinstance(tokenizer, Mixture):
            members = tokenizer.members.values()
            tokenizer = next((member for member in members if isinstance(member, TEXT_TOKENIZERS)), tokenizer)
        if not isinstance(tokenizer, TEXT_TOKENIZERS):
            raise InputError(
                f"the task {task} has a {type(tokenizer).__name__}, which has no table of words: give a model for texts"
            )
        self._tokenizer = tokenizer
        with torch.no_grad():
            self._vectors = functional.normalize(tokenizer.embedding.weight.float().cpu(), dim=1)

    @cached_property
    def words(self) -> dict[str, int]:
        """The id of each word. An entry that only occurs inside words is not a word."""
        ids = range(len(self._tokenizer.vocabulary))
        names = zip(self._tokenizer.vocabulary.tokens(ids), ids, strict=True)
        return {name: i for name, i in names if name and self.find(name) == i}

    def find(self, word: str) -> int | None:
        """Return the id of a word, or None if the table has no such word."""
        tokenizer = self._tokenizer
        if isinstance(tokenizer, PretrainedTextTokenizer):
            ids = tokenizer.vocabulary.codec.encode(word, add_special_tokens=False).ids
            special = tokenizer.vocabulary.special
        else:
            lower = isinstance(tokenizer, WordTokenizer) and tokenizer.lowercase
            ids = tokenizer.vocabulary.encode_start(word.lower() if lower else word)
            special = [i for i in ids if tokenizer.vocabulary.is_special(i)]
        return ids[0] if len(ids) == 1 and ids[0] not in special else None

    def nearest(self, query: Query, count: int = DEFAULT_COUNT) -> list[Neighbor]:
        """Return the nearest words, best first, without the words of the query (3CosAdd, Mikolov et al. 2013).

        Raises:
            InputError: A word is not in the table, no other words are left, or `count` is below 1.
        """
        if count < 1:
            raise InputError(f"count={count}: at least 1 is needed")
        terms = [(self._require(word), sign) for word, sign in query.terms]
        others = {name: i for name, i in self.words.items() if i not in dict(terms)}
        if not others:
            raise InputError(f"the table has no words beside those of the query {query.text!r}")
        vector = torch.stack([self._vectors[i] * sign for i, sign in terms]).sum(0)
        cosines = self._vectors @ functional.normalize(vector, dim=0)
        names, ids = [*others], [*others.values()]
        best = cosines[torch.tensor(ids)].topk(min(count, len(ids)))
        return [Neighbor(names[i], cosine) for cosine, i in zip(*map(torch.Tensor.tolist, best), strict=True)]

    def _require(self, word: str) -> int:
        index = self.find(word)
        if index is None:
            close = difflib.get_close_matches(word, self.words, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "give a word of the training texts"
            raise InputError(f"the word {word!r} is not in the table of {len(self.words):,} words; {hint}")
        return index


def parse_queries(words: Sequence[str]) -> list[Query]:
    """Return one query per word. Words that are joined by + or - form one query, such as king - man + woman.

    Raises:
        InputError: There is no word, or a sign has no word on one of its sides.
    """
    queries: list[list[str]] = []
    for part in " ".join(words).split():
        if queries and (part in "+-" or queries[-1][-1] in "+-"):
            queries[-1].append(part)
        else:
            queries.append([part])
    if not queries:
        raise InputError("the query is empty: give a word of the training texts")
    found: list[Query] = []
    for parts in queries:
        text = " ".join(parts)
        if not re.fullmatch(r"(?![+-] )\S+(?: [+-] (?![+-]( |$))\S+)*", text) or text in "+-":
            raise InputError(f"{text!r} is no sum of words: write a word on both sides of each sign, as in king - man")
        signs = [1, *(1 if sign == "+" else -1 for sign in parts[1::2])]
        found.append(Query(text, tuple(zip(parts[::2], signs, strict=True))))
    return found


def write_neighbors(
    table: VectorTable,
    queries: Sequence[Query],
    out: TextIO,
    *,
    count: int = DEFAULT_COUNT,
    style: Literal["csv", "jsonl"] = "csv",
) -> None:
    """Write one row per nearest word, with the columns query, word and cosine. Unknown words write nothing.

    Args:
        table: The table.
        queries: The queries.
        out: The output.
        count: The number of words for each query.
        style: "csv" is a table, and "jsonl" is one JSON object per line.

    Raises:
        InputError: A word is not in the table, or `count` is below 1.
    """
    rows = [*_rows(table, queries, count)]
    if style == "jsonl":
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return
    writer = csv.DictWriter(out, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _rows(table: VectorTable, queries: Sequence[Query], count: int) -> Iterator[dict[str, str | float]]:
    for query in queries:
        for word, cosine in table.nearest(query, count):
            yield {"query": query.text, "word": word, "cosine": round(cosine, 4)}
