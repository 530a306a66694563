"""What may happen to a file: some bytes change, move, come or go, or all of it; and checksums that are made to fit.

Every mutation is drawn from a generator, so that a seed tells it.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from ralm.storage.manifest import manifest_checksum, whole_checksum
from ralm.storage.outputs import MANIFEST

NUMBERS = (b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"\x00\x00\x00\x80", b"\x01")


def flip(content: bytearray, random: Random) -> None:
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def overwrite(content: bytearray, random: Random) -> None:
    """Put in a number such as overflows."""
    number, at = random.choice(NUMBERS), random.randrange(len(content))
    content[at : at + len(number)] = number[: len(content) - at]


def overwrite_head(content: bytearray, random: Random) -> None:
    """The same where files say what is in them: at the front, or at the end."""
    number, at = random.choice(NUMBERS), random.randrange(min(len(content), 160))
    at = random.choice([at, len(content) - 1 - at])
    content[at : at + len(number)] = number[: len(content) - at]


def zero(content: bytearray, random: Random) -> None:
    begin, end = _range(content, random)
    content[begin:end] = bytes(end - begin)


def scramble(content: bytearray, random: Random) -> None:
    begin, end = _range(content, random)
    content[begin:end] = random.randbytes(end - begin)


def truncate(content: bytearray, random: Random) -> None:
    del content[random.choice([random.randrange(len(content)), len(content) - 1, 0]) :]


def extend(content: bytearray, random: Random) -> None:
    content += random.randbytes(random.choice([1, 4, 8, 1000]))


def delete(content: bytearray, random: Random) -> None:
    begin, end = _range(content, random)
    del content[begin:end]


def repeat(content: bytearray, random: Random) -> None:
    begin, end = _range(content, random)
    content[end:end] = content[begin:end]


def swap(content: bytearray, random: Random) -> None:
    """Two blocks change places."""
    size = min(random.choice([1, 4, 8, 64]), len(content) // 2)
    one, other = (random.randrange(len(content) - size + 1) for _ in range(2))
    content[one : one + size], content[other : other + size] = (
        content[other : other + size],
        content[one : one + size],
    )


def break_word(content: bytearray, random: Random) -> None:
    """A word, such as the name of a column, is no UTF-8 any more."""
    words = [*re.finditer(rb"[A-Za-z_]{4,}", content)]
    content[random.choice(words).end() - 1 if words else random.randrange(len(content))] = 0xFF


BYTES: tuple[Callable[[bytearray, Random], None], ...] = (
    flip, overwrite, overwrite_head, zero, scramble, truncate, extend, delete, repeat, swap, break_word,
)  # fmt: skip


def damage(file: Path, random: Random) -> str:
    """Damage a file, in one of these ways or, now and then, as a whole; what was done."""
    whole = random.random()
    if whole < 0.02:
        file.unlink()
        return "remove"
    if whole < 0.04:
        file.unlink()
        file.mkdir()
        return "replace by a folder"
    if whole < 0.06:
        others = sorted(other for other in file.parent.iterdir() if other.is_file() and other != file)
        if others:
            shutil.copyfile(random.choice(others), file)
            return "replace by another file"
    content = bytearray(file.read_bytes())
    mutate = random.choice(BYTES) if content else extend
    mutate(content, random)
    file.write_bytes(content)
    return mutate.__name__


def mend(folder: Path) -> None:
    """Make the manifest of a folder fit the files that are there, as far as it can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        for name, entry in list(manifest["files"].items()):
            file = folder / name
            if file.is_file():
                entry |= {"bytes": file.stat().st_size, "sha256": whole_checksum(file)}
        manifest["checksum"] = manifest_checksum(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    (folder / MANIFEST).write_text(json.dumps(manifest))


def _range(content: bytearray, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(content))
    return begin, min(len(content), begin + random.choice([1, 4, 16, 100, 4000]))
