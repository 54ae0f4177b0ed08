"""The check of docstrings finds planted faults."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", Path(__file__).with_name("prose.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("word", ["What", "Whether", "The", "Of", "`Where`"])
def test_wrong_first_word_is_found(prose: ModuleType, word: str) -> None:
    text = f'def f():\n    """{word} is returned."""\n'
    text += 'class A:\n    @property\n    def f(self):\n        """The name."""\n'
    assert [line for line, _ in prose.docstring_faults(text)] == [1], "only properties may begin with The"


def test_phrase_is_found_in_its_line(prose: ModuleType) -> None:
    text = '"""Plain.\n\nA task that is none.\n"""\nx = 1  # Drawn anew.\n'
    assert [line for line, _ in prose.phrase_faults(text)] == [3, 5]
