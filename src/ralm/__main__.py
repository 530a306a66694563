"""The entry point of both `ralm` and `python -m ralm`."""

import os
import sys

# a probe needs tokenizers alone, and transformers would import torch, which takes most of its time
if sys.argv[1:2] == ["probe"]:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch was not found

from ralm.cli import main

if __name__ == "__main__":
    main()
