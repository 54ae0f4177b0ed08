"""Errors as a person reads them."""

import pytest

from unifier_tokenizers.errors import one_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such thing"), "no such thing"),
        (OSError("the disk\n  is full\r\n"), "the disk is full"),
        (EOFError(), "EOFError"),
        (AssertionError("\n"), "AssertionError"),
    ],
)
def test_an_error_is_one_line_that_says_something(error: Exception, said: str) -> None:
    assert one_line(error) == said
