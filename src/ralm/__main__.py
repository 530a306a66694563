"""The entry point of both `ralm` and `python -m ralm`.

An interrupt during the imports ends the program at once: there is nothing to clean up yet, and a traceback would not
help.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from ralm.cli import main
from ralm.processes import collect_rarely

collect_rarely()

if __name__ == "__main__":
    main()
