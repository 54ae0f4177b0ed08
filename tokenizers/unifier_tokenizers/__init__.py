"""Tokenizers: each turns one modality into the D x N matrix that every trunk reads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
