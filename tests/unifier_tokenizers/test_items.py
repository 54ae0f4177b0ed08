"""The tokenizer for sequences of items keeps the contract, and refuses items outside the catalog."""

import pytest

from unifier_tokenizers import InputError, check_tokenizer
from unifier_tokenizers.items import BEGIN_ITEM, ItemTokenizer


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
def test_contract(positions: str) -> None:
    check_tokenizer(ItemTokenizer(9, 8, positions=positions), [[1, 9, 3], [2, 2], [4, 1, 3]])  # pyright: ignore[reportArgumentType]


def test_begin_token_comes_first() -> None:
    assert ItemTokenizer(9, 8).encode([3, 9]).values.tolist() == [BEGIN_ITEM, 3, 9]


@pytest.mark.parametrize("raw", [[], "12", [0], [10], [1, -1], [1.0], ["1"], None])
def test_item_outside_the_catalog_is_refused(raw: object) -> None:
    with pytest.raises(InputError):
        ItemTokenizer(9, 8).encode(raw)  # pyright: ignore[reportArgumentType]
