"""What an experiment learns of its data before it trains, kept with its run: a run is then loaded without its data."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from unifier.study.experiment import check_name
from unifier_tokenizers import InputError, Vocabulary


class _Memory(NamedTuple):
    kept: dict[str, Vocabulary]
    """What a run kept."""
    asked: dict[str, Vocabulary]
    """What was asked for since."""


_memory: ContextVar[_Memory | None] = ContextVar("memory", default=None)


def fitted(name: str, fit: Callable[[], Vocabulary]) -> Vocabulary:
    """The vocabulary that `fit` learns; where a run is loaded or resumed, the one that it learned when the run began.

    An experiment's function asks for each under a name of its own.
    """
    memory = _memory.get()
    if memory is None:
        return fit()
    check_name(name)
    if name in memory.asked:
        raise InputError(f'two parts of the experiment learn a vocabulary called "{name}": give each its own name')
    memory.asked[name] = memory.kept[name] if name in memory.kept else fit()
    return memory.asked[name]


@contextmanager
def remembering(run: Path | None = None) -> Generator[dict[str, Vocabulary]]:
    """While an experiment is built: what is `fitted` comes from a run's folder where it is there.

    Gives what was asked for, by name.
    """
    files = (run / FOLDER).glob("*.json") if run else ()
    memory = _Memory({file.stem: Vocabulary.load(file) for file in files}, {})
    token = _memory.set(memory)
    try:
        yield memory.asked
    finally:
        _memory.reset(token)


FOLDER = "vocabularies"


def keep(vocabularies: dict[str, Vocabulary], run: Path) -> None:
    """Write what was `fitted` into a run's folder."""
    for name, vocabulary in vocabularies.items():
        (run / FOLDER).mkdir(exist_ok=True)
        vocabulary.save(run / FOLDER / f"{name}.json")
