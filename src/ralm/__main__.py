"""The entry point of both `ralm` and `python -m ralm`."""

import os
import signal
import sys

# as in `ralm`, for programs that run this module in another way
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# a probe needs tokenizers alone, and transformers would import torch, which takes most of its time
if sys.argv[1:2] == ["probe"]:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch was not found

from ralm.cli import main

if __name__ == "__main__":
    main()
