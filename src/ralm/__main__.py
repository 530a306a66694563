"""The entry point of both `ralm` and `python -m ralm`.

An interrupt during the imports ends the program at once: there is nothing to clean up yet, and a traceback would not
help. Almost everything that the imports make stays: looking for garbage after every 700 objects, as Python does unless
told otherwise, takes a fifth of the time until a model is loaded.
"""

import gc
import signal

gc.set_threshold(10_000)

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from ralm.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
