"""fitted: what an experiment learns of its data before training, stored with the run."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from unifier.study.experiment import check_name
from unifier.study.files import read_json, write_json
from unifier_tokenizers import InputError, Vocabulary

Learned = Vocabulary | float
One = TypeVar("One", Vocabulary, int, float)


class _Memory(NamedTuple):
    kept: dict[str, Learned]
    """What a run kept."""
    asked: dict[str, Learned]
    """What was asked for since."""


_memory: ContextVar[_Memory | None] = ContextVar("memory", default=None)


def fitted(name: str, fit: Callable[[], One]) -> One:
    """The vocabulary or number that `fit` learns; where a run is loaded or resumed, what it learned when the run began.

    An experiment's function asks for each under a name of its own.
    """
    memory = _memory.get()
    if memory is None:
        return fit()
    check_name(name)
    if name in memory.asked:
        raise InputError(f'two parts of the experiment learn what they call "{name}": give each its own name')
    found = cast("One", memory.kept[name]) if name in memory.kept else fit()
    memory.asked[name] = found
    return found


@contextmanager
def remembering(run: Path | None = None) -> Generator[dict[str, Learned]]:
    """While an experiment is built: what is `fitted` comes from a run's folder where it is there.

    Gives what was asked for, by name.
    """
    files = (run / FOLDER).glob("*.json") if run else ()
    numbers: dict[str, float] = read_json(run / NUMBERS) if run and (run / NUMBERS).exists() else {}
    memory = _Memory({file.stem: Vocabulary.load(file) for file in files} | numbers, {})
    token = _memory.set(memory)
    try:
        yield memory.asked
    finally:
        _memory.reset(token)


FOLDER, NUMBERS = "vocabularies", "numbers.json"


def keep(learned: dict[str, Learned], run: Path) -> None:
    """Write what was `fitted` into a run's folder."""
    for name, one in learned.items():
        if isinstance(one, Vocabulary):
            (run / FOLDER).mkdir(exist_ok=True)
            one.save(run / FOLDER / f"{name}.json")
    if numbers := {name: one for name, one in learned.items() if not isinstance(one, Vocabulary)}:
        write_json(run / NUMBERS, numbers)
