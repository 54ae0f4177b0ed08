"""`unifier translate` from end to end, with a small run."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch

from unifier.cli import main
from unifier.heads.transformer_decoder import TranslationHead
from unifier.inference import translate as module
from unifier.inference.translate import AlignmentPage, DecodingOptions, open_input, read_as_it_arrives, translate
from unifier.inference.translator import Alignment, Translator
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

LINES = ["two one", "", "three", "four five six one two three", "  ", "six six", "one", ""]


def translated(translator: Translator, text: str | bytes, **decoding: object) -> list[str]:
    """Return the lines written for a text."""
    out = io.StringIO()
    content = text.encode() if isinstance(text, str) else text
    translate(translator, io.BytesIO(content), "input", out, DecodingOptions(**decoding))  # pyright: ignore[reportArgumentType]
    assert not out.getvalue() or out.getvalue().endswith("\n")
    return out.getvalue().split("\n")[:-1]


def test_translations_are_those_of_the_run(run: Path, translator: Translator) -> None:
    samples = json.loads((run / "samples.json").read_text())["en-de"]
    assert len(samples) > 5
    texts = translated(translator, "\n".join(sample["input"] for sample in samples))
    assert texts == [sample["prediction"] for sample in samples]
    correct = sum(sample["prediction"] == sample["target"] for sample in samples)
    assert correct > len(samples) / 2, "the model has learned something"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_keep_their_order_and_empty_lines(translator: Translator, end: str, last: bool) -> None:
    alone = [translated(translator, line)[0] if line.strip() else "" for line in LINES]
    assert len(set(alone)) > 4
    lines = LINES if last else LINES[:-1]  # Only a line feed after it shows that the last, empty line exists.
    assert translated(translator, end.join(lines) + (end if last else "")) == alone[: len(lines)]
    assert translated(translator, "") == []
    assert translated(translator, "\n\n") == ["", ""]
    assert translated(translator, b"\xef\xbb\xbfthree") == alone[2:3]


@pytest.mark.parametrize(("block", "group"), [(7, 3), (1 << 16, 64), (100, 1000)])
def test_lines_do_not_depend_on_blocks(block: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    monkeypatch.setattr(module, "MAX_BATCH_LINES", group)
    text = "".join(f"line {k}{'é' * (k % 50)}\n" for k in range(500)) + "x" * 1000 + "\nlast"
    groups = list(read_as_it_arrives(io.BytesIO(text.encode()), "input"))
    lines = [line for lines in groups for line in lines]
    assert [number for number, _ in lines] == list(range(1, 503))
    assert [line.decode() for _, line in lines] == text.split("\n")
    assert max(map(len, groups)) <= group


def test_long_lines_are_cut_named_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "MAX_READ_BYTES", 100_001)
    monkeypatch.setattr(module, "MAX_SKIPPED_BYTES", 1_000_000)
    text = ("é" * 100_000 + "\ntwo\n" + "y" * 100_002).encode()
    lines = [line for group in read_as_it_arrives(io.BytesIO(text), "input") for line in group]
    assert [(number, len(line)) for number, line in lines] == [(1, 100_000), (2, 3), (3, 100_001)]
    err = capsys.readouterr().err
    assert ("input, line 1: 200,000 bytes" in err, "input, line 3: 100,002 bytes" in err) == (True, True)
    with Path("/dev/zero").open("rb") as endless, pytest.raises(InputError, match="endless, line 1"):
        list(read_as_it_arrives(endless, "endless"))


def test_input_has_old_line_ends_or_compression(tmp_path: Path) -> None:
    for text in ("one\rtwo\rthree", "one\rtwo\rthree\r", "one\rtwo\rthree" * 9000):
        groups = read_as_it_arrives(io.BytesIO(text.encode()), "input")
        assert [line.decode() for group in groups for _, line in group] == text.removesuffix("\r").split("\r")
    for name, compress in (("a.GZ", gzip.compress), ("a.bz2", bz2.compress), ("a.txt", lzma.compress)):
        (tmp_path / name).write_bytes(compress(b"one\ntwo"))
        with open_input(str(tmp_path / name)) as file:
            assert [*read_as_it_arrives(file, name)] == [[(1, b"one")], [(2, b"two")]]
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", "a\0b", "x" * 300, "gone"):
        with pytest.raises(InputError):
            open_input(str(tmp_path / name))


def test_n_best_rows_are_best_first(translator: Translator) -> None:
    rows = [row.split("\t") for row in translated(translator, "\n".join(LINES[:4]), n_best=3, beam=4)]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] + ["3"] * 3 + ["4"] * 3
    assert rows[3] == ["2", "", ""]
    for start in (0, 4, 7):
        scores = [float(row[1]) for row in rows[start : start + 3]]
        assert scores == sorted(scores, reverse=True)
        assert len({row[2] for row in rows[start : start + 3]}) > 1
    best = [row[2] for row in rows if row[0] in "134"]
    assert best[::3] == [text for text in translated(translator, "\n".join(LINES[:4]), beam=4) if text]
    assert translated(translator, "one", n_best=1)[0].split("\t")[2] == translated(translator, "one")[0]


def test_length_penalty_divides_the_score(translator: Translator) -> None:
    rows = [translated(translator, "three four", n_best=1, length_penalty=power)[0].split("\t") for power in (0, 1)]
    length = len(translator.head.vocabulary.encode(rows[0][2])) + 1
    assert rows[0][2] == rows[1][2]
    assert float(rows[0][1]) == pytest.approx(float(rows[1][1]) * length, abs=1e-3 * length)


def test_samples_depend_on_seed_and_line_alone(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(LINES)
    options: dict[str, object] = {"sample": True, "temperature": 3.0, "n_best": 2}
    sampled = translated(translator, text, **options)
    assert sampled == translated(translator, text, **options)
    for other in ({"seed": 1}, {"temperature": 0.5}):
        assert sampled != translated(translator, text, **{**options, **other})
    monkeypatch.setattr(module, "MAX_BATCH_LINES", 1)
    assert sampled == translated(translator, text, **options)
    assert translated(translator, text, sample=True, top_k=1) == translated(translator, text, beam=1)
    assert translated(translator, text, sample=True, top_p=1e-6) == translated(translator, text, beam=1)
    rows = translated(translator, "three\nsix six", sample=True, temperature=3.0, n_best=8)
    for start in (0, 8):
        scores = [float(row.split("\t")[1]) for row in rows[start : start + 8]]
        assert len(set(scores)) > 4
        assert scores == sorted(scores, reverse=True)


def test_any_script_makes_one_line_each(translator: Translator) -> None:
    lines = ["日本語のテキスト", "مرحبا", "🙂🙃", "one\u2028two", "one\u0085two", "one\x0ctwo", "a\rb", "\ttab"]
    assert len(translated(translator, "\n".join(lines), n_best=2, sample=True, temperature=9.0)) == 2 * len(lines)
    assert len(translated(translator, "\n".join(lines))) == len(lines)


def test_longer_line_is_translated_or_refused(
    translator: Translator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = " ".join(["one"] * (translator.longest + 3))
    assert translated(translator, " ".join(["one"] * (translator.longest // 2)))
    assert not capsys.readouterr().err
    texts = translated(translator, f"two\n{long}\nthree")
    assert len(texts) == 3
    assert texts[0::2] == translated(translator, "two\nthree")
    assert f"input, line 2: {translator.longest + 4} tokens" in capsys.readouterr().err
    out = io.StringIO()
    with pytest.raises(InputError, match=r"input, line 2: .*--long translate"):
        translate(translator, io.BytesIO(f"two\n{long}\nthree".encode()), "input", out, DecodingOptions(long="refuse"))
    assert out.getvalue().splitlines() == translated(translator, "two"), "the lines before it are translated"
    endless = " ".join(["one"] * 200_000)
    assert translated(translator, f"two\n{endless}\nthree")[0::2] == texts[0::2]
    assert f"input, line 2: {200_001 - 8 * translator.longest:,} tokens are left out" in re.sub(
        "(line 2: ).*and ", r"\1", capsys.readouterr().err
    )
    # A truncated translation causes a warning.
    monkeypatch.setattr(TranslationHead, "max_lengths", lambda _, tokens: torch.full((len(tokens.mask),), 2))
    translated(translator, "one two three four\n")
    assert "input, line 1" in capsys.readouterr().err


def test_unreadable_input_is_named(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="input, line 2: not UTF-8"):
        translated(translator, b"one\n\xff\xfe\n")
    with pytest.raises(InputError, match="input cannot be read"):
        translate(translator, gzip.GzipFile(fileobj=io.BytesIO(b"plain")), "input", io.StringIO(), DecodingOptions())
    monkeypatch.setattr(sys, "stdin", None)
    for path in (None, "-"):
        with pytest.raises(InputError, match="standard input"):
            open_input(path)


@pytest.mark.parametrize(
    ("decoding", "message"),
    [
        ({"n_best": 0}, "n_best=0"),
        ({"beam": 0}, "beam=0"),
        ({"beam": 2, "n_best": 3}, "n_best=3: .* --beam 3"),
        ({"beam": 2, "sample": True}, "--sample or --beam"),
        ({"seed": 3}, "seed: .* --sample"),
        ({"top_k": 3, "temperature": 0.0}, "temperature, top_k: .* --sample"),
        ({"seed": -1}, "seed=-1"),
        ({"length_penalty": 1e4}, "length_penalty=10000.0"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"long": "cut"}, "long"),
    ],
)
def test_contradictory_options_are_refused(decoding: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DecodingOptions(**decoding)  # pyright: ignore[reportArgumentType]


def test_command_reads_gzip_and_writes_alignments(
    run: Path, translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compressed, page = tmp_path / "lines.gz", tmp_path / "out.html"
    compressed.write_bytes(gzip.compress("\n".join([*LINES, "<b>&"]).encode()))
    assert main(["translate", str(run), str(compressed), "--beam", "2", "--attention", str(page)]) == 0
    assert capsys.readouterr().out.splitlines() == translated(translator, "\n".join([*LINES, "<b>&"]), beam=2)
    html = page.read_text()
    assert re.findall(r"<caption>line (\d+)</caption>", html) == ["1", "3", "4", "6", "7", "9"]
    assert not re.search(r"(src|href)=|url\(|@import|<b>", html), "the page is self-contained, and its texts escaped"
    lines = [json.loads(unescape(data)) for data in re.findall(r'data-layers="([^"]*)"', html)]
    assert len(lines) == 6
    lines.append(json.loads((run / "attention.json").read_text())["en-de"]["heads"])  # The report shows these.
    for layers in lines:
        assert {layer["name"].split()[0] for layer in layers} == {"trunk", "decoder", "cross"}
        for layer in layers:
            assert np.shape(layer["heads"])[1:] == (len(layer["queries"]), len(layer["keys"]))
            np.testing.assert_allclose(np.sum(layer["heads"], -1), 1, atol=0.01)
    for table in re.findall(r"<table>.*?</table>", html, flags=re.DOTALL):
        columns = re.findall(r"<th scope=col>(.*?)</th>", table)
        assert columns[-1] == "(end)"
        for row in re.findall(r"<tr><th scope=row>.*?</tr>", table):
            shares = [float(share) for share in re.findall(r'→ [^"]*?: ([\d.]+)"', row)]
            assert len(shares) == len(columns)
            assert sum(shares) == pytest.approx(1, abs=0.005 * len(shares) + 1e-9)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_pipe_gets_each_line_and_may_close(run: Path, translator: Translator) -> None:
    program = [sys.executable, "-W", "error", "-m", "unifier", "translate", str(run)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}  # The output is UTF-8 all the same.
    pipe = subprocess.PIPE
    with subprocess.Popen(program, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert translated(translator, "five\n") == ["fünf"]
        for line in ("two one", "", "five"):
            print(line, file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{translated(translator, line + chr(10))[0]}\n"
        process.stdout.close()  # `head` does the same.
        print("one", file=process.stdin, flush=True)
        assert process.wait() == 1
        assert process.stderr.read() == ""


def test_command_refuses_in_one_line(
    run: Path, experiment_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, gone = tmp_path / "nowhere" / "out.html", tmp_path / "gone"
    for run_folder, arguments, message in (
        (tmp_path, [os.devnull], "config.json"),
        (experiment_file, [os.devnull], "config.json"),
        (run, [tmp_path], f"{tmp_path} cannot be read"),
        (run, [os.devnull, "--attention", page], str(page)),
        (run, [os.devnull, "--attention", tmp_path], f"{tmp_path} is a folder"),
        (run, [gone, "--attention", tmp_path / "out.html"], f"{gone}"),
    ):
        assert main(["translate", str(run_folder), *map(str, arguments)]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert message in printed.err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_alignment_page_prints_its_colors(tmp_path: Path) -> None:
    with AlignmentPage(tmp_path / "a.html") as page:
        page.add(1, Alignment(["a", "dog"], ["un", "chien"], [[0.9, 0.1], [0.2, 0.8]]))
    text = (tmp_path / "a.html").read_text()
    assert "dark" not in text.partition("</style>")[2], "on a dark background, the strongest attention is brightest"
    assert "print-color-adjust: exact" in text
