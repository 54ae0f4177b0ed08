"""Data sets: built-in data sets, published data sets, and your own files. `__init__.pyi` lists the public names."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
