"""Retrieval-augmented language models that need no change to the model.

`__init__.pyi` lists the public names. Each is loaded on first use, so that `import ralm` is fast. ARCHITECTURE.md maps
the modules. Everything else is imported from its module and may move.
"""

import sys

if (sys.argv[0] == "-m" and "ralm" in sys.orig_argv) or sys.argv[0].endswith("/ralm"):
    # This process is the program: an interrupt while it loads ends it at once, since there is nothing to clean up yet
    # and a traceback would not help. The module `signal` takes as long to load as the rest of this file.
    import _signal

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
