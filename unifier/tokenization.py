"""The public names of `unifier_tokenizers`, which this module also makes names of `unifier`."""

from unifier_tokenizers import *  # noqa: F403
from unifier_tokenizers.errors import check_choice as check_choice
