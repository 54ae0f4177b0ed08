"""unifier: one transformer trained on text, images and audio, and comparisons of what sharing it gains or costs.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that `import unifier` is fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
