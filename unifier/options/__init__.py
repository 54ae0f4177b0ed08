"""Setting groups that recipes share. A setting group is a dataclass whose fields are settings.

The method `build` of a setting group creates an object from the settings. For the value None, `build` chooses a default
or computes a value from the data. `unifier show FILE` and `unifier run FILE --help` print the docstrings of the fields.
The file `__init__.pyi` lists the public names.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
