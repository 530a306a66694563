"""Passages encoded on the machines of a cluster, which leave their vectors where the plain code looks for them."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from ralm.distributed.cluster import Here
from ralm.distributed.machines import check_device, machines
from ralm.distributed.work import TRIES
from ralm.errors import ClusterError, UsageError
from ralm.protocols import Encoder
from ralm.retrieval.dense.build import CHUNK, ChunkEncoder, check_passage_text
from ralm.retrieval.dense.options import NOTHING_ENCODED, EncoderOptions, EncodingStats, load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.layout import options_of_config
from ralm.storage.atomic import storage_errors
from ralm.terminal import progress_bar

_PACKAGES: Final = ("torch", "transformers", "sentence-transformers")


@dataclass(frozen=True, eq=False)
class _Loaded:
    """An index, and what encodes its passages."""

    index: Index
    chunks: ChunkEncoder
    encoder: Encoder


@dataclass(frozen=True)
class _EncoderMaker:
    """Loads an encoder and an index on any machine that has what is `here`; `work` is where vectors go."""

    index: Path
    options: EncoderOptions
    device: str
    work: Path
    here: Here

    @property
    def said(self) -> str:
        """What it loads, in messages."""
        return f"the encoder {self.options.encoder}"

    def __call__(self) -> _Loaded:
        """Load them; raises ClusterError if this machine lacks something, and what loading them raises."""
        self.here.check()
        encoder = load_encoder(self.options, device=self.device)
        return _Loaded(open_index(self.index), ChunkEncoder(self.work, encoder), encoder)

    def facts(self, loaded: _Loaded) -> dict[str, Any]:
        """The fingerprints of both."""
        return {"index": loaded.index.fingerprint, **loaded.chunks.config}


@dataclass(frozen=True)
class EncodeOn:
    """Encodes the passages of an index on the cluster at an address; see `ralm.retrieval.encoding.Ahead`. `device`: as
    for `machines`.

    The index, its encoder if that is a folder, and the folder for the vectors must be on a disk that all machines
    share. Raises ClusterError if one cannot read or write them, or has another encoder.
    """

    address: str
    device: str

    def __post_init__(self) -> None:
        check_device(self.device)
        if self.device == "map":
            raise UsageError("an encoder is not spread over several GPUs: give another `device` than 'map'.")

    def __call__(self, index: Index, encoder: Encoder, work: Path) -> EncodingStats:
        """Leave the vectors of its passages in the folder `work`."""
        options = options_of_config(encoder.config)
        folders = [Path(name) for name in (options.encoder, options.query_encoder) if name and Path(name).is_dir()]
        work = work.absolute()
        begins = [*range(0, len(index.passages), CHUNK), len(index.passages)]
        with storage_errors(work):
            work.mkdir(exist_ok=True)
        with (
            machines(self.address, self.device) as found,
            Here.of(work, [index.path.absolute(), *folders], _PACKAGES) as here,
            progress_bar("Encoding passages", len(index.passages)) as advance,
        ):
            device = "auto" if self.device == "all" else self.device
            maker = _EncoderMaker(index.path.absolute(), options, device, work, here)
            own = {"index": index.fingerprint, **encoder.config}
            if found.facts(maker) != own:
                raise ClusterError(f"the machines of the cluster have another index or encoder than {maker.said} here.")
            done = NOTHING_ENCODED
            for span, one in found.run(maker, _encode, pairwise(begins), name=_said, bad=_bad):
                advance(span[1] - span[0])
                done = done.plus(one)
        return done


def _encode(loaded: _Loaded, span: tuple[int, int]) -> EncodingStats:
    """Save the vectors of consecutive passages, unless they are there."""
    passages = [loaded.index.passages[number] for number in range(*span)]
    for one in passages:
        check_passage_text(loaded.encoder, one)
    before = loaded.chunks.done
    with storage_errors(loaded.index.path):
        loaded.chunks.encode(passages)
    after = loaded.chunks.done
    return EncodingStats(after.passages - before.passages, after.seconds - before.seconds)


def _said(span: tuple[int, int]) -> str:
    return f"encoding the passages from {span[0]:,} to {span[1]:,}"


def _bad(span: tuple[int, int]) -> NoReturn:
    raise ClusterError(
        f"{_said(span)} ends the process that does it, each of {TRIES} times; the machines may have too little memory."
    )
