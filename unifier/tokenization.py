"""The public names of `unifier_tokenizers`, under unifier's own roof for `import unifier as uf`."""

from unifier_tokenizers import *  # noqa: F403
from unifier_tokenizers.errors import check_choice as check_choice
