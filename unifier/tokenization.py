"""All public names of `unifier_tokenizers`, which `import unifier as uf` makes available here, too."""

from unifier_tokenizers import *  # noqa: F403
from unifier_tokenizers.errors import check_choice as check_choice
