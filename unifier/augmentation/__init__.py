"""Augmentation of encoded pictures, sounds and texts. The file `__init__.pyi` lists the public names."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
