"""`python -m ralm` is `ralm`: both begin here.

While the program is imported an interrupt ends it at once: nothing has to be cleaned up yet, and a
traceback is of no use.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from ralm.cli import main

if __name__ == "__main__":
    main()
