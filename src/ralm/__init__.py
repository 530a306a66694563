"""Retrieval-augmented language models that need no change to the model.

`__init__.pyi` lists the public names. Each is loaded when it is first used, so that `import ralm` waits for nothing.
CONTRIBUTING.md says what they belong to; everything else is reached by its module and may move.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
