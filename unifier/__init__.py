"""unifier: one transformer trained on text, images and audio, and comparisons of what sharing it gains or costs.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that `import unifier` is fast.
"""

import getpass
import os
from pathlib import Path

import lazy_loader

# Both calls read the environment and then the password database, so they fail only for a user id without an entry.
try:
    getpass.getuser()
except (KeyError, OSError):  # In a container, a user id may have no name, but torch and W&B need a name.
    os.environ["LOGNAME"] = f"uid-{os.getuid()}"
try:
    Path.home()
except RuntimeError:  # Docker uses this folder too. W&B needs a home folder, but not one that can be written.
    os.environ["HOME"] = "/"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
