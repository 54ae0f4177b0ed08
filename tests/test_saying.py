"""Nothing that is said of the data needs anybody who listens."""

import subprocess
import sys
from hashlib import sha256
from io import TextIOBase
from pathlib import Path
from signal import SIGINT

import numpy as np
import pytest
import soundfile

from unifier.data.download import RemoteFile, download
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.parallel_text import ParallelText
from unifier.experiment import Experiment, Task, Training
from unifier.files import print_status
from unifier.heads.classification import ClassificationHead
from unifier.training.callbacks import GracefulStop
from unifier.training.fit import encode_tasks
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer


class Gone(TextIOBase):
    """What a program writes to when nobody reads it any more."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError


def go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be called in a test: pytest sets both anew after its fixtures."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Gone())


def test_a_line_is_for_standard_output_or_where_it_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    print_status("read")
    print_status("skipped", sys.stderr)
    assert capsys.readouterr() == ("read\n", "skipped\n")


def test_sounds_are_encoded_kept_and_found_unheard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    lines = ["file,label,fold"]
    for k in range(12):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-0.5, 0.5, 2000), 4000)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{k // 3}")
    (tmp_path / "0.wav").write_bytes(b"no sound")
    (tmp_path / "1.wav").write_bytes((tmp_path / "5.wav").read_bytes())
    (tmp_path / "sounds.csv").write_text("\n".join(lines))

    go_away(monkeypatch)

    def examples() -> int:
        source = AudioFolder(tmp_path / "sounds.csv")
        task = Task(source, FrameTokenizer(8, sample_rate=4000, n_mels=16), ClassificationHead(source.labels, 8))
        training = Training(steps=1, num_workers=0, bad_examples="skip")
        encoded = encode_tasks(Experiment(Transformer(8, 1, 2, 8), {"sounds": task}, training, name="sounds"), {})[
            "sounds"
        ]
        return sum(map(len, encoded.splits.values()))

    assert examples() == 11  # encoded, one of them skipped
    assert examples() == 11  # found
    (kept,) = (tmp_path / "cache" / "encoded").iterdir()
    (kept / "values").unlink()
    assert examples() == 11  # found damaged
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "sounds.csv"))
    assert examples() == 11  # not to be kept


def test_one_may_ask_unheard_for_training_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_away(monkeypatch)
    callback = GracefulStop(tmp_path)
    callback._ask(SIGINT, None)  # pyright: ignore[reportPrivateUsage]
    assert callback.asked


def test_files_are_downloaded_unheard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_away(monkeypatch)
    (tmp_path / "there").write_bytes(b"a set")
    download((tmp_path / "there").as_uri(), tmp_path / "here", RemoteFile(5, sha256(b"a set").hexdigest()))
    assert (tmp_path / "here").read_bytes() == b"a set"


def test_pairs_are_cleaned_unheard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_away(monkeypatch)
    (tmp_path / "pairs.tsv").write_text("".join(f"a dog {k % 20}\tein Hund {k % 20}\n" for k in range(30)))
    source = ParallelText(tmp_path / "pairs.tsv", duplicates="drop")
    assert len(source.split("train")) < 24


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("print('a line', flush=True)", []),
        ("raise Interrupted(Path('runs'))", []),
        ("raise BrokenPipeError('the pipe of a tracker')", ["BrokenPipeError: the pipe of a tracker"]),
    ],
    ids=["it prints", "it is interrupted", "another pipe"],
)
def test_a_command_ends_silently_where_its_own_output_is_read_by_nobody(act: str, told: list[str]) -> None:
    needed = "from pathlib import Path\nfrom unifier import cli\nfrom unifier.training.result import Interrupted"
    program = f"{needed}\ndef act(_): {act}\ncli.act_list = act\nraise SystemExit(cli.main(['list']))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        if not told:
            command.stdout.close()
        said = command.stderr.read().decode()
    assert command.returncode == 1
    assert [line for line in said.splitlines()[-1:] if not line.startswith("interrupted")] == told
