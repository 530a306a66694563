"""Every error that ralm raises on purpose, on one page.

A message says what was wrong, where, and what to do about it, in one sentence or two. The command line prints the
message alone and exits with `exit_status`; a traceback is always a bug of ours.

    RalmError                    anything below
    +-- UsageError               an option or argument makes no sense (exit status 2)
    +-- InputError               a file that was given cannot be read as what it should be
    |   +-- CorpusError          a source of documents
    |   +-- TextError            a text to evaluate
    |   +-- RetrievalFileError   a file of retrieved passages (the official JSON)
    +-- FolderError              a folder that ralm writes and reads: an index, a run
    |   +-- FolderExistsError    the output is already there
    |   +-- NotAFolderOfThisKindError
    |   +-- DamagedFolderError   truncated or altered
    |   +-- NewerFormatError     written by a later ralm
    |   +-- OlderFormatError     written by a ralm whose format is no longer read
    |   +-- OtherEncoderError    an index of vectors that another encoder made
    +-- StorageError             the disk is full, or will not take the file
    +-- WorkerError              a process that worked for this one has died
    +-- PartError                a part that was plugged in does not keep its contract
    |   +-- RetrieverError       a retriever that gives what are no hits
    |   +-- RerankerError        a reranker that gives what are no hits, or others than it was given
    |   +-- ReaderError          a reader whose weights are no average
    +-- ModelError               a language model, encoder or tokenizer that cannot be loaded or used as asked
    +-- MissingExtraError        an optional dependency that is not installed

`RalmWarning` is what a figure should not be read without, where it is no error.
"""


class RalmError(Exception):
    """The root of the tree: catch this to catch everything that ralm raises on purpose."""

    exit_status = 1


class UsageError(RalmError):
    """An option or argument makes no sense; the message names the value and the choices."""

    exit_status = 2


class InputError(RalmError):
    """A file that was given cannot be read as what it should be."""


class CorpusError(InputError):
    """A source of documents is missing, empty or malformed."""


class TextError(InputError):
    """A text to evaluate is missing, empty, too short or not UTF-8."""


class RetrievalFileError(InputError):
    """A file of retrieved passages is malformed, or was made for another text, stride or tokenizer."""


class FolderError(RalmError):
    """A folder that ralm writes and reads (an index, a run) cannot be used."""


class FolderExistsError(FolderError):
    """The output folder is already there and nothing said to replace it."""


class NotAFolderOfThisKindError(FolderError):
    """The path is no such folder: missing, a file, or something else's folder."""


class DamagedFolderError(FolderError):
    """A file of the folder is missing, truncated or altered."""


class NewerFormatError(FolderError):
    """The folder was written in a format later than this version of ralm knows."""


class OlderFormatError(FolderError):
    """The folder was written in a format that this version of ralm no longer reads."""


class OtherEncoderError(FolderError):
    """The vectors of an index were made by another encoder than the one that is to encode queries."""


class StorageError(RalmError):
    """The disk is full or refuses the file; what was there before is untouched."""


class WorkerError(RalmError):
    """A process that worked for this one has died."""


class ModelError(RalmError):
    """A language model, an encoder or a tokenizer cannot be loaded, or cannot do what is asked of it."""


class PartError(RalmError):
    """A part that was plugged in, such as your own reader, does not keep the contract of its protocol."""


class RetrieverError(PartError):
    """A retriever gives something that is no hits of the queries that it was asked."""


class RerankerError(PartError):
    """A reranker gives something that is no choice among the hits that it was given."""


class ReaderError(PartError):
    """A reader gives something that is no reading of the hits that it was given."""


class MissingExtraError(RalmError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class RalmWarning(UserWarning):
    """Something that a figure should not be read without; the command line prints it as one line."""
