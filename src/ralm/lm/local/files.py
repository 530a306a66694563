"""Loading from folders and hubs: errors as one sentence, and no progress bars of the libraries."""

import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import transformers
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

from ralm.errors import MissingExtraError, ModelError, RalmError

_NAMED: Final = 3
"""The most weights that a message names."""
_MISSING: Final = re.compile(r"^(.+?) *\| MISSING\b", re.MULTILINE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_OF_CALLS: Final = (TypeError, AttributeError, KeyError, NameError)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@contextmanager
def loading_errors(what: str, name: str) -> Iterator[None]:
    """Turn any error of transformers while it loads a model or tokenizer into a one-sentence ModelError.

    Broad on purpose: a damaged folder makes the loading code fail in ways that cannot be listed.
    """
    try:
        yield
    except RalmError:
        raise
    except ImportError as error:
        if "accelerate" in str(error):
            raise MissingExtraError(
                "spreading a model over devices needs the package accelerate: pip install 'ralm[device-map]'."
            ) from error
        raise ModelError(f"cannot load the {what} of {name}: {first_line(error)}") from error
    except Exception as error:
        raise ModelError(f"cannot load the {what} of {name}{_where(name)}: {_reason(error)}") from error


@contextmanager
def no_bars() -> Iterator[None]:
    """Within, transformers and the hub draw no progress bars; the previous settings are restored afterwards."""
    of_transformers, of_hub = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the hub warns if an environment variable has the last word
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if of_transformers:
                transformers_logging.enable_progress_bar()  # this enables the hub's too
            (enable_progress_bars if of_hub else disable_progress_bars)()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Within, transformers draws no bars and logs no warnings."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with no_bars():
            yield
    finally:
        transformers_logging.set_verbosity(level)


@contextmanager
def whole_loading(name: str, may_lack: Callable[[str], bool]) -> Iterator[None]:
    """The same, and at the end ModelError if transformers filled in weights at random.

    `may_lack` says of which weights that does not matter; it is called after loading.
    """
    reports: list[str] = []
    with quiet_loading(), _load_reports(reports):
        yield
    keys = [key for report in reports for key in _MISSING.findall(_COLOUR.sub("", report))]
    lacking = [key for key in keys if not may_lack(key)]
    if lacking:
        raise ModelError(f"{name} lacks weights that its config.json asks for: {listed(lacking)}.")


@contextmanager
def _load_reports(reports: list[str]) -> Iterator[None]:
    """Within, what transformers would log of loaded weights is added to a list; it offers no other way for models
    that sentence-transformers loads."""
    logger = transformers_logging.get_logger("transformers.modeling_utils")
    handler, level, propagate = _Collecting(reports), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Collecting(logging.Handler):
    """Adds messages to a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def listed(keys: Collection[str]) -> str:
    """The first of the names of weights, and how many more there are."""
    named = sorted(keys)[:_NAMED]
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(named) + more


def check_folder(name: str) -> None:
    """Raise ModelError if `name` is a local folder that cannot be a model, before anything is read or downloaded."""
    folder = Path(name)
    if folder.is_file():
        raise ModelError(f"{name} is a file; give the folder that holds config.json and the weights.")
    if not folder.is_dir():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelError(f"there is no folder {name}.")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} is not a model folder: it has no config.json.")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise ModelError(f"{name} has no weights: neither *.safetensors nor pytorch_model*.bin.")


def check_tokenizer(name: str, own_files: Iterable[str] = ()) -> None:
    """Raise ModelError if a local folder has no tokenizer: transformers would create an empty one.

    `own_files` are the files of this kind of tokenizer, besides the usual ones.
    """
    folder, files = Path(name), dict.fromkeys((*_TOKENIZER_FILES, *own_files))
    if folder.is_dir() and not any((folder / file).is_file() for file in files):
        raise ModelError(f"{name} has no tokenizer: none of {', '.join(files)}.")


def _where(name: str) -> str:
    return "" if Path(name).is_dir() else " (no such folder here, so it was looked for on the model hub)"


def _reason(error: Exception) -> str:
    """The first line of an error; with the version of the library if the error may be of a call that does not fit."""
    if not isinstance(error, _OF_CALLS):
        return first_line(error)
    kind = type(error).__name__
    return (
        f"{first_line(error)} ({kind} with transformers {transformers.__version__}: if the files are whole, this "
        "version does not fit ralm)"
    )


def first_line(error: Exception) -> str:
    """The first line of an error message, or the type of an error without one."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
