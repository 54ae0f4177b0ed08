"""A model with a tokenizer and a head of another installed package, loaded in another process and folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unifier import load
from unifier_tokenizers import InputError

PACKAGE = """
import torch
from torch import nn
from unifier import ClassificationHead, Head, Tokenizer, Tokens, Units

class NoteTokenizer(Tokenizer):
    def __init__(self, dim, scale=1.0, names=("c", "d")):
        super().__init__(dim)
        self.scale, self.names, self.embedding = scale, names, nn.Embedding(12, dim)
    def encode(self, raw):
        return Units(torch.tensor(raw), torch.arange(len(raw))[None])
    def embed(self, values, positions):
        return self.scale * self.embedding(values).mT

class PitchHead(Head):
    def __init__(self, dim):
        super().__init__()
        self.dim, self.out = dim, nn.Linear(dim, 1)
    def encode(self, target):
        return torch.tensor(float(target))
    def loss(self, tokens, target):
        return (self.out(tokens.matrix.mean(2))[:, 0] - target).square().mean()
    def predict(self, tokens):
        return self.out(tokens.matrix.mean(2))[:, 0].tolist()
    def metrics(self, predictions, targets):
        return {"own": 0.0}
"""
WRITE = """
from pathlib import Path
import torch
from notes.parts import NoteTokenizer, PitchHead
from unifier import Network, create_trunk
from unifier.data.inputs import reader_of
from unifier.models.card import _use
from unifier.models.folder import ModelTask, StoredModel, write_model
tokenizer = NoteTokenizer(16, scale=2.0)
tasks = {"pitch": ModelTask(tokenizer, PitchHead(16), reader_of(None, tokenizer), 9)}
trunk = create_trunk("transformer", 16, 1, 2, 16)
model = StoredModel("notes", trunk, tasks, 256, {})
write_model(Path("model"), model, "\\n".join(_use(model)))
print(Network(trunk, tasks).eval().predict("pitch", [[1, 2, 3]]))
"""
LOAD = "import unifier; print([*unifier.load(*__import__('sys').argv[1:]).predictions([[1, 2, 3]])])"


@pytest.mark.slow
def test_plugin_loads_by_its_entry_point(tmp_path: Path) -> None:
    site, other = tmp_path / "site", tmp_path / "other"
    files = {
        "notes/__init__.py": "",
        "notes/parts.py": PACKAGE,
        "notes_of_music-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: notes-of-music\nVersion: 1.0\n",
        "notes_of_music-1.0.dist-info/entry_points.txt": "[unifier.tokenizers]\nnotes = notes.parts:NoteTokenizer\n"
        "[unifier.heads]\npitch = notes.parts:PitchHead\n",
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    other.mkdir()

    def run(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path[1:]]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    written = run(WRITE, tmp_path)
    model = (tmp_path / "model").rename(other / "renamed")
    card = (model / "README.md").read_text()
    assert "pip install unifier-torch notes-of-music" in card
    assert "classes=" not in card
    loaded = run(LOAD, other, str(model))
    assert (loaded.stdout, loaded.returncode) == (written.stdout, 0), loaded.stderr + written.stderr
    with pytest.raises(InputError, match="notes-of-music"):  # This process lacks the package.
        load(model)
