"""Tokenizers, which turn text, pictures and sound into D x N matrices of tokens."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
