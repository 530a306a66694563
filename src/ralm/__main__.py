"""`python -m ralm` is `ralm`."""

from ralm.cli import main

main()
