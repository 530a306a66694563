"""Draw what `ralm demo` printed as docs/demo.svg: `ralm demo | python -m tools.demo_picture docs/demo.svg`."""

import io
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 124
END = "\nNext, "


def main(out: str) -> None:
    """Read a terminal's output from standard input, up to the hint on what to type next, and write it as a picture."""
    shown = sys.stdin.read().partition(END)[0].strip("\n")
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(shown))
    console.save_svg(out, title="ralm demo")


if __name__ == "__main__":
    main(sys.argv[1])
