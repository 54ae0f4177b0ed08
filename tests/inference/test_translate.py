"""`unifier translate` from end to end: a small run, whose data is gone, translates what comes."""

import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from shutil import copytree

import pytest
import torch

from unifier.cli import main
from unifier.heads.transformer_decoder import TranslationHead
from unifier.inference import translate as command
from unifier.inference.load import load
from unifier.inference.translate import DecodingOptions, open_input, read_as_it_arrives, translate
from unifier.inference.translator import Translator
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "translation.py"
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
LINES = ["two one", "", "three", "four five six one two three", "  ", "six six", "one", ""]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; the file it learned from is gone."""
    folder = tmp_path_factory.mktemp("translate")
    data, drawn = folder / "pairs.tsv", random.Random(0)
    sentences = [drawn.choices(list(WORDS), k=drawn.randint(1, 6)) for _ in range(400)]
    data.write_text("".join(f"{' '.join(one)}\t{' '.join(WORDS[word] for word in one)}\n" for one in sentences))
    settings = {
        "data": data, "target": "de", "vocabulary": 300, "dim": 32, "depth": 1, "decoder_depth": 1, "heads": 2,
        "ffn_dim": 32, "dropout": 0, "r_drop": 0, "beam_width": 1, "tokens": 60_000, "batch_tokens": 256,
        "learning_rate": 0.01,
    }  # fmt: skip
    arguments = [f"{name}={value}" for name, value in settings.items()]
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["run", str(EXPERIMENT), *arguments, "--out", str(folder / "runs"), "--track", "off"]) == 0
    data.unlink()
    return Path(printed.getvalue().splitlines()[-1])


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return Translator(run)


def said(translator: Translator, text: str | bytes, **decoding: object) -> list[str]:
    """The lines written for a text."""
    out = io.StringIO()
    content = text.encode() if isinstance(text, str) else text
    translate(translator, io.BytesIO(content), "input", out, DecodingOptions(**decoding))  # pyright: ignore[reportArgumentType]
    assert not out.getvalue() or out.getvalue().endswith("\n")
    return out.getvalue().split("\n")[:-1]


def test_a_run_is_loaded_as_it_was_without_its_data(run: Path, translator: Translator) -> None:
    samples = json.loads((run / "samples.json").read_text())["en-de"]
    assert len(samples) > 5
    found = said(translator, "\n".join(one["input"] for one in samples))
    assert found == [one["prediction"] for one in samples]
    assert sum(one["prediction"] == one["target"] for one in samples) > len(samples) / 2, "it has learned something"
    loaded = load(run)
    experiment, model = loaded.experiment, loaded.network
    assert not model.training
    head = experiment.tasks["en-de"].head
    assert isinstance(head, TranslationHead)
    assert head.vocabulary.codec.to_str() == translator.head.vocabulary.codec.to_str()
    kept = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_keep_their_order_and_empty_ones_their_place(translator: Translator, end: str, last: bool) -> None:
    alone = [said(translator, line)[0] if line.strip() else "" for line in LINES]
    assert len(set(alone)) > 4
    lines = LINES if last else LINES[:-1]  # a last line that is empty shows only by the line feed after it
    assert said(translator, end.join(lines) + (end if last else "")) == alone[: len(lines)]
    assert said(translator, "") == []
    assert said(translator, "\n\n") == ["", ""]
    assert said(translator, b"\xef\xbb\xbfthree") == alone[2:3]


def test_lines_are_cut_from_a_file_whatever_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"line {k}{'é' * (k % 50)}\n" for k in range(500)) + "last"
    for block, chunk in ((7, 3), (1 << 16, 64), (100, 1000)):
        monkeypatch.setattr(command, "BLOCK", block)
        monkeypatch.setattr(command, "CHUNK", chunk)
        chunks = list(read_as_it_arrives(io.BytesIO(text.encode()), "input"))
        lines = [line for one in chunks for line in one]
        assert [number for number, _ in lines] == list(range(1, 502))
        assert [line.decode() for _, line in lines] == text.split("\n")
        assert max(map(len, chunks)) <= chunk


def test_a_very_long_line_takes_as_long_as_many_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BLOCK", 64)
    seconds: list[float] = []
    for line in (b"x" * 63 + b"\n", b"x" * 64):
        start = time.process_time()
        found = [text for chunk in read_as_it_arrives(io.BytesIO(16_000 * line), "input") for _, text in chunk]
        seconds.append(time.process_time() - start)
        assert b"".join(found) == 16_000 * line.removesuffix(b"\n")
    assert seconds[1] < 5 * seconds[0]


def test_n_best_is_number_score_and_text_best_first(translator: Translator) -> None:
    rows = [row.split("\t") for row in said(translator, "\n".join(LINES[:4]), n_best=3, beam=4)]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] + ["3"] * 3 + ["4"] * 3
    assert rows[3] == ["2", "", ""]
    for start in (0, 4, 7):
        scores = [float(row[1]) for row in rows[start : start + 3]]
        assert scores == sorted(scores, reverse=True)
        assert len({row[2] for row in rows[start : start + 3]}) > 1
    best = [row[2] for row in rows if row[0] in "134"]
    assert best[::3] == [text for text in said(translator, "\n".join(LINES[:4]), beam=4) if text]
    assert said(translator, "one", n_best=1)[0].split("\t")[2] == said(translator, "one")[0]


def test_what_is_drawn_is_best_first_too(translator: Translator) -> None:
    rows = [row.split("\t") for row in said(translator, "\n".join(LINES[2:4]), sample=True, temperature=3.0, n_best=8)]
    for start in (0, 8):
        scores = [float(row[1]) for row in rows[start : start + 8]]
        assert len(set(scores)) > 4
        assert scores == sorted(scores, reverse=True)


def test_the_length_penalty_divides_the_score(translator: Translator) -> None:
    one, other = (said(translator, "three four", n_best=1, length_penalty=power)[0].split("\t") for power in (0, 1))
    length = len(translator.head.vocabulary.encode(one[2])) + 1
    assert one[2] == other[2]
    assert float(one[1]) == pytest.approx(float(other[1]) * length, abs=1e-3 * length)


def test_what_is_drawn_depends_on_the_seed_and_the_line_alone(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(LINES)
    drawn = said(translator, text, sample=True, temperature=3.0, n_best=2)
    assert drawn == said(translator, text, sample=True, temperature=3.0, n_best=2)
    assert drawn != said(translator, text, sample=True, temperature=3.0, n_best=2, seed=1)
    assert drawn != said(translator, text, sample=True, temperature=0.5, n_best=2)
    monkeypatch.setattr(command, "CHUNK", 1)
    assert drawn == said(translator, text, sample=True, temperature=3.0, n_best=2)
    assert said(translator, text, sample=True, top_k=1) == said(translator, text, beam=1)
    assert said(translator, text, sample=True, top_p=1e-6) == said(translator, text, beam=1)


def test_any_script_and_any_bytes_of_it_make_one_line_each(translator: Translator) -> None:
    lines = ["日本語のテキスト", "مرحبا", "🙂🙃", "one\u2028two", "one\u0085two", "one\x0ctwo", "a\rb", "\ttab"]
    assert len(said(translator, "\n".join(lines), n_best=2, sample=True, temperature=9.0)) == 2 * len(lines)
    assert len(said(translator, "\n".join(lines))) == len(lines)


def test_a_line_longer_than_any_trained_on_is_translated_or_refused_and_never_cut(
    translator: Translator, capsys: pytest.CaptureFixture[str]
) -> None:
    long = " ".join(["one"] * (translator.longest + 3))
    assert said(translator, " ".join(["one"] * (translator.longest // 2)))
    assert not capsys.readouterr().err
    found = said(translator, f"two\n{long}\nthree")
    assert len(found) == 3
    assert found[0::2] == said(translator, "two\nthree")
    assert capsys.readouterr().err.startswith(
        f"warning: input, line 2: {translator.longest + 4} tokens, and the longest text the model was trained on had "
        f"{translator.longest}; it is translated all the same\n"
    )
    out = io.StringIO()
    with pytest.raises(InputError, match=r"input, line 2: .* tokens, and the longest .*--long translate"):
        translate(translator, io.BytesIO(f"two\n{long}\nthree".encode()), "input", out, DecodingOptions(long="refuse"))
    assert out.getvalue().splitlines() == said(translator, "two"), "what stands before it is translated"


def test_a_translation_that_does_not_end_is_said_to_be_cut(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(run)
    monkeypatch.setattr(TranslationHead, "limits", lambda _, tokens: torch.full((len(tokens.mask),), 2))
    said(translator, "one two three four\n")
    assert "input, line 1: its translation was truncated" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_by_its_line(translator: Translator) -> None:
    with pytest.raises(InputError, match="input, line 2: not UTF-8 text"):
        said(translator, b"one\n\xff\xfe\n")
    with pytest.raises(InputError, match="input cannot be read: Not a gzipped file"):
        translate(translator, gzip.GzipFile(fileobj=io.BytesIO(b"plain")), "input", io.StringIO(), DecodingOptions())


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        ({"n_best": 0}, "n_best=0: at least 1"),
        ({"beam": 0}, "beam=0: at least 1"),
        ({"beam": 2, "n_best": 3}, "a beam of 2 finds no 3 texts: take --beam 3"),
        ({"beam": 2, "sample": True}, "leave out --sample or --beam"),
        ({"seed": 3}, "seed: of texts drawn by chance alone; add --sample"),
        ({"top_k": 3, "temperature": 0.0}, "temperature, top_k: of texts drawn by chance alone; add --sample"),
        ({"seed": -1}, "seed=-1"),
        ({"length_penalty": 1e4}, "length_penalty=10000.0: a power from 0"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"long": "cut"}, "long"),
    ],
)
def test_options_that_do_not_go_together(decoding: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        DecodingOptions(**decoding)  # pyright: ignore[reportArgumentType]


def test_the_command_reads_a_file_and_writes_a_page_of_alignments(
    run: Path, translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, page = tmp_path / "lines.gz", tmp_path / "out.html"
    packed.write_bytes(gzip.compress("\n".join([*LINES, "<b>&"]).encode()))
    assert main(["translate", str(run), str(packed), "--beam", "2", "--attention", str(page)]) == 0
    assert capsys.readouterr().out.splitlines() == said(translator, "\n".join([*LINES, "<b>&"]), beam=2)
    html = page.read_text()
    assert re.findall(r"<caption>line (\d+)</caption>", html) == ["1", "3", "4", "6", "7", "9"]
    assert not re.search(r"(src|href)=|url\(|@import|<b>", html), "it stands by itself, and shows what was written"
    for table in re.findall(r"<table>.*?</table>", html, flags=re.DOTALL):
        columns = re.findall(r"<th scope=col>(.*?)</th>", table)
        assert columns[-1] == "&lt;eos&gt;"
        for row in re.findall(r"<tr><th scope=row>.*?</tr>", table):
            shares = [float(share) for share in re.findall(r'→ [^"]*?: ([\d.]+)"', row)]
            assert len(shares) == len(columns)
            assert sum(shares) == pytest.approx(1, abs=0.005 * len(shares) + 1e-9)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_alignment_is_the_mean_of_what_the_blocks_record(translator: Translator) -> None:
    from unifier_tokenizers import Tokens

    head, ids = translator.head, torch.tensor([[5, 6, 7], [8, 5, 5]])
    assert isinstance(head, TranslationHead)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    tokens = Tokens(torch.randn(2, 32, 4), mask, torch.arange(4).expand(2, 1, 4))
    weights: list[torch.Tensor] = []
    head.hidden_states(tokens, torch.tensor([[2, 5, 6, 7], [2, 8, 5, 5]]), weights=weights)
    torch.testing.assert_close(head.alignment(tokens, ids), sum(weights).mean(1) / len(weights))  # type: ignore[union-attr]


def test_a_pipe_gets_each_line_as_it_is_done_and_is_left_quietly(run: Path, translator: Translator) -> None:
    program = [sys.executable, "-W", "error", "-m", "unifier.cli", "translate", str(run)]
    terminal = {**os.environ, "PYTHONIOENCODING": "ascii"}  # and what is written is UTF-8
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, cwd=ROOT, env=terminal, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8"
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert said(translator, "five\n") == ["fünf"]
        for line in ("two one", "", "five"):
            print(line, file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{said(translator, line + chr(10))[0]}\n"
        process.stdout.close()  # as `head` does
        print("one", file=process.stdin, flush=True)
        assert process.wait() == 1
        assert process.stderr.read() == ""


def refused(capsys: pytest.CaptureFixture[str], run: Path | str, *arguments: str | Path) -> str:
    """What the command says as it refuses, on one line."""
    assert main(["translate", str(run), os.devnull, *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_closed_standard_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="there is no standard input: name a file"):
        open_input(None)


def test_what_is_no_run_that_translates_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "settings.json: no such file" in refused(capsys, tmp_path)
    assert "settings.json: no such file" in refused(capsys, EXPERIMENT)
    other = tmp_path / "other"
    copytree(run, other)
    settings = json.loads((other / "settings.json").read_text())

    def changed(**parts: object) -> None:
        (other / "settings.json").write_text(json.dumps({**settings, **parts}))

    changed(study=str(tmp_path / "gone.py:translation"))
    assert f"its experiment {tmp_path}/gone.py is not there" in refused(capsys, other)
    assert main(["translate", str(other), os.devnull, "--experiment", str(EXPERIMENT)]) == 0
    changed(study="")
    assert "name it: --experiment FILE" in refused(capsys, other)
    changed(settings={**settings["settings"], "dim": 16})
    assert "best.ckpt does not fit" in refused(capsys, other)
    changed(longest=None)
    assert "settings.json: broken (it lacks longest)" in refused(capsys, other)
    changed(name="another")
    assert 'is a run of "another", and' in refused(capsys, other)
    changed()
    assert main(["translate", str(run), str(tmp_path)]) == 2
    assert f"{tmp_path} cannot be read: Is a directory" in capsys.readouterr().err
    page = tmp_path / "nowhere" / "out.html"
    assert f"{page} cannot be written: No such file" in refused(capsys, run, "--attention", page)
    assert f"{tmp_path} is a folder: name a file in it" in refused(capsys, run, "--attention", tmp_path)
    assert main(["translate", str(run), str(tmp_path / "gone"), "--attention", str(tmp_path / "out.html")]) == 2
    assert "gone cannot be read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    (other / "checkpoints" / "best.ckpt").write_bytes(b"torn")
    assert "best.ckpt: broken" in refused(capsys, other)
    (other / "checkpoints" / "best.ckpt").unlink()
    assert "best.ckpt: no such file; the run was stopped" in refused(capsys, other)


def test_a_run_of_pictures_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = str(ROOT / "experiments" / "pictures.py")
    small = ["tokens=200", "dim=16", "depth=1", "--track", "off", "--out", str(tmp_path)]
    assert main(["run", pictures, *small]) == 0
    folder = capsys.readouterr().out.splitlines()[-1]
    error = refused(capsys, folder)
    assert f'{folder} is a run of "pictures"' in error
    assert "none of its tasks (digits) translates texts" in error
