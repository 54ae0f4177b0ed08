import pytest

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such thing"), "no such thing"),
        (OSError("the disk\n  is full\r\n"), "the disk is full"),
        (EOFError(), "EOFError"),
        (AssertionError("\n"), "AssertionError"),
    ],
)
def test_one_line_is_message_or_class_name(error: Exception, line: str) -> None:
    assert one_line(error) == line


def test_check_choice_lists_the_options() -> None:
    assert check_choice("level", "b", ("a", "b")) == "b"
    with pytest.raises(InputError, match=r"level 'c'.* a, b"):
        check_choice("level", "c", ("a", "b"))
