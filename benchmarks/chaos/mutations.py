"""Random mutations of the bytes of a file, of JSON texts and of tables. A mutation depends only on the generator."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]

Mutator = Callable[[Random, bytes], tuple[str, bytes]]
"""Function that returns the name of a mutation and the mutated content."""

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
"""Integers that overflow counters and sizes in headers."""

HEADER_BYTES = 128
"""Half of the mutations change only these first bytes, because a header has the greatest effect."""

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, 10**30, 2**63, float("nan"), float("inf"), float("-inf")),
    *("", "x", "nan", "0", "../..", "\x00", "\x1b[2J", "\ud800", "=1+1", "a" * 100_000, "é\u202e"),
    *([], [[]], [None], [1, "x"], [0] * 10_000, {}, {"": 0}, {"a": {"b": []}}),
)
"""Values of other types, sizes and ranges than a JSON file should have."""

ODD_CELLS = (
    *(
        "",
        " ",
        "nan",
        "inf",
        "-1",
        "1e999",
        "0x10",
        "1_000",
        "９",
        "a\x00b",
        "\x1b[2J",
        '"',
        "'",
        ",",
        "\t",
        "\n",
        "\r",
    ),
    *("../../etc/passwd", "/dev/zero", "=1+1", "a" * 300, "a" * 100_000, "é\u202e", "\ufeff", "\ud800"),
)
"""Texts that a cell of a table should not have."""


def flip_bits(rng: Random, content: bytes) -> bytes:
    """Flip 1 to 8 bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        changed[_offset(rng, content)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_bytes(rng: Random, content: bytes) -> bytes:
    """Set 1 to 16 adjacent bytes to random values."""
    start = _offset(rng, content)
    size = min(rng.randint(1, 16), len(content) - start)
    return content[:start] + rng.randbytes(size) + content[start + size :]


def set_integer(rng: Random, content: bytes) -> bytes:
    """Replace 1, 2, 4 or 8 bytes by an extreme integer in either byte order."""
    size = rng.choice((1, 2, 4, 8))
    start = _offset(rng, content)
    value = (rng.choice(EXTREMES) % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
    return content[:start] + value + content[start + size :]


def set_digits(rng: Random, content: bytes) -> bytes:
    """Replace a digit by a long, negative or fractional number."""
    digits = [k for k, byte in enumerate(content[:10_000]) if 0x30 <= byte <= 0x39]
    if not digits:
        return set_integer(rng, content)
    at = rng.choice(digits)
    number = rng.choice((b"-1", b"99999999999", b"0", b"1e9", b"0.5", b"\xd9\xa3", b"9" * 5000))
    return content[:at] + number + content[at + 1 :]


def cut_end(rng: Random, content: bytes) -> bytes:
    """Keep only the start of the file."""
    return content[: rng.randrange(len(content))]


def cut_start(rng: Random, content: bytes) -> bytes:
    """Keep only the end of the file."""
    return content[rng.randrange(1, len(content) + 1) :]


def delete_block(rng: Random, content: bytes) -> bytes:
    """Delete a block."""
    start, end = _block(rng, content)
    return content[:start] + content[end:]


def repeat_block(rng: Random, content: bytes) -> bytes:
    """Repeat a block 1 to 50 times."""
    start, end = _block(rng, content)
    return content[:end] + content[start:end] * rng.randint(1, 50) + content[end:]


def swap_blocks(rng: Random, content: bytes) -> bytes:
    """Exchange two adjacent blocks."""
    start, middle, end = sorted(rng.choices(range(len(content) + 1), k=3))
    return content[:start] + content[middle:end] + content[start:middle] + content[end:]


def insert_bytes(rng: Random, content: bytes) -> bytes:
    """Insert random bytes, zeros or line ends."""
    at = rng.randrange(len(content) + 1)
    size = rng.choice((1, 2, 7, 100, 5000))
    added = rng.choice((rng.randbytes(size), bytes(size), b"\n" * size, b"\r" * size, b"\xff" * size, b"9" * size))
    return content[:at] + added + content[at:]


def zero_block(rng: Random, content: bytes) -> bytes:
    """Replace a block by zeros, as a file system does after a crash."""
    start, end = _block(rng, content)
    return content[:start] + bytes(end - start) + content[end:]


def append_bytes(rng: Random, content: bytes) -> bytes:
    """Append random bytes, or the whole content once more."""
    return content + rng.choice((rng.randbytes(rng.randint(1, 1000)), content))


def remove_content(rng: Random, content: bytes) -> bytes:
    """Return an empty file."""
    return b""


BYTE_MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, set_bytes, set_integer, set_digits, cut_end, cut_start, delete_block, repeat_block, swap_blocks),
    *(insert_bytes, zero_block, append_bytes, remove_content),
)


def mutate_bytes(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Return the name of a random mutation, and the mutated content, which differs from the given content."""
    while True:
        mutation = rng.choice(BYTE_MUTATIONS)
        if (changed := mutation(rng, content)) != content:
            return mutation.__name__, changed


def mutate_json(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Change a random value of a JSON text: another type, a missing or additional key, NaN, or a deep list."""
    while True:
        value = json.loads(content)
        if rng.random() < 0.1:
            depth, spots = rng.choice((2, 50, 300, 600, 950, 100_000)), _spots(value)
            parent, key = rng.choice(spots)
            parent[key] = "\x00nest"
            nested = "[" * depth + "]" * depth
            return f"{depth} lists in {key}", json.dumps(value).replace('"\\u0000nest"', nested).encode()
        name = mutate_value(rng, value, ODD_VALUES)
        changed = json.dumps(value).encode()
        if changed != json.dumps(json.loads(content)).encode():
            return name, changed


def mutate_value(rng: Random, value: Any, odd_values: Sequence[Any]) -> str:
    """Change a random entry of nested dictionaries and lists, and return the name of the mutation."""
    parent, key = rng.choice(_spots(value))
    kind = rng.choice(("replace", "replace", "remove", "repeat", "add"))
    if kind == "remove":
        del parent[key]
    elif kind == "repeat" and isinstance(parent, list):
        parent[key:key] = [parent[key]] * rng.choice((1, 3, 1000))
    elif kind == "add" and isinstance(parent, dict):
        parent[rng.choice(("", "x", "\x1b[2J", "nan", f"{key}2"))] = rng.choice(odd_values)
    else:
        kind, parent[key] = "replace", rng.choice(odd_values)
    return f"{kind} {key}"


def mutate_table(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Change a random cell, row or column of a table with comma- or tab-separated values."""
    delimiter = "\t" if b"\t" in content else ","
    rows = list(csv.reader(io.StringIO(content.decode(), newline=""), delimiter=delimiter))
    while True:
        row = rng.choice(rows)
        column = rng.randrange(max(len(row), 1))
        kind = rng.choice(("replace", "remove cell", "add cell", "remove row", "repeat row", "remove column", "names"))
        if kind == "replace":
            row[column : column + 1] = [rng.choice(ODD_CELLS)]
        elif kind == "remove cell":
            del row[column : column + 1]
        elif kind == "add cell":
            row[column:column] = [rng.choice(ODD_CELLS)] * rng.choice((1, 1, 1000))
        elif kind == "remove row":
            rows.remove(row)
        elif kind == "repeat row":
            rows.extend([row] * rng.choice((1, 1000)))
        elif kind == "remove column":
            for each in rows:
                del each[column : column + 1]
        else:
            rows[0] = rng.choice((rows[0][::-1], [name.upper() for name in rows[0]], [rows[0][0]] * len(rows[0]), []))
        text = io.StringIO(newline="")
        end = rng.choice(("\n", "\r\n", "\r"))
        quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)
        if (changed := text.getvalue().encode(errors="surrogatepass")) != content and rows:
            return f"{kind} {column}", changed


def mutate_json_file(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Change a value of a JSON text, or in one of four cases its bytes."""
    return mutate_bytes(rng, content) if rng.random() < 0.25 else mutate_json(rng, content)


def _offset(rng: Random, content: bytes) -> int:
    """Return a random offset: in half of the cases in the header."""
    return rng.randrange(min(len(content), HEADER_BYTES) if rng.random() < 0.5 else len(content))


def _block(rng: Random, content: bytes) -> tuple[int, int]:
    """Return the start and the end of a random block of at most 2,000 bytes."""
    start = _offset(rng, content)
    return start, min(start + rng.randint(1, 2000), len(content))


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Return each container and key of a JSON value."""
    spots: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        parent = waiting.pop()
        keys = list(parent) if isinstance(parent, dict) else range(len(parent)) if isinstance(parent, list) else ()
        spots += [(parent, key) for key in keys]
        waiting += [parent[key] for key in keys]
    return spots
