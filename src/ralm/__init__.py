"""Retrieval-augmented language models that need no change to the model.

`__init__.pyi` lists the public names. Each is loaded on first use, so that `import ralm` is fast. CONTRIBUTING.md maps
the modules. Everything else is imported from its module and may move.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
