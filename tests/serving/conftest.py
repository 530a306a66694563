"""The server that most tests of serving ask."""

from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import httpx
import pytest

from ralm import EncoderOptions, build_index, load_encoder
from ralm.corpus.splitting import make_passages
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import WritingModel
from ralm.serving.local import LocalService
from tests.chat_models import save_chat_model
from tests.serving.served import DOCUMENTS, local, save_index, serving, tiny
from tests.tiny_encoders import save_tiny_bert

signature(httpx.get).parameters["timeout"].default.read = 60  # for all functions of httpx; the 5 seconds are too few


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a few documents."""
    return save_index(tmp_path_factory.mktemp("served") / "index")


@pytest.fixture(scope="session")
def service(index: Path) -> LocalService:
    """The built-in model with this index."""
    return local(tiny(), folders={"few": index})


@pytest.fixture(scope="session")
def url(service: LocalService) -> Iterator[str]:
    """The address of a server with an index, which it reads by default."""
    with serving(service) as address:
        yield address


@pytest.fixture(scope="session")
def plain_url() -> Iterator[str]:
    """The address of a server without an index."""
    with serving(local(tiny())) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[httpx.Client]:
    """A client of the server with an index."""
    with httpx.Client(base_url=url, timeout=60) as http:
        yield http


@pytest.fixture(scope="session")
def dense_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that has vectors too."""
    folder = tmp_path_factory.mktemp("dense")
    encoder = load_encoder(EncoderOptions(encoder=str(save_tiny_bert(folder / "bert"))))
    build_index(make_passages(DOCUMENTS), folder / "index", encoder=encoder)
    return folder / "index"


@pytest.fixture(scope="session")
def dense_url(dense_index: Path) -> Iterator[str]:
    """The address of a server with this index."""
    with serving(local(tiny(), folders={"both": dense_index})) as url:
        yield url


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template."""
    return save_chat_model(tmp_path_factory.mktemp("chat-model") / "tiny-chat")


@pytest.fixture(scope="session")
def chat_model(chat_folder: Path) -> WritingModel:
    """This model."""
    return load_language_model(str(chat_folder), ModelOptions(dtype="float32"))


@pytest.fixture(scope="session")
def chat_url(chat_model: WritingModel, index: Path) -> Iterator[str]:
    """The address of a server with this model and an index."""
    with serving(local(chat_model, folders={"few": index})) as url:
        yield url
