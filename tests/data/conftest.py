"""The check that bad input is refused in one line."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from unifier_tokenizers import InputError


@contextmanager
def refused(*parts: str) -> Generator[None]:
    """Expect an InputError of one line that contains these parts."""
    with pytest.raises(InputError) as error:
        yield
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)
