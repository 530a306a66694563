"""What the probe finds out about each kind of server and its length; no fault becomes a wrong figure."""

import math
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ralm import evaluate_text
from ralm.errors import ModelError, RalmError, ServerError, UsageError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.api.model import ApiModel
from ralm.lm.api.probe import cache_difference, load_api_model, probe_server
from ralm.lm.scoring import Scorer
from ralm.protocols import UNLIMITED
from ralm.reading.plan import PlanOptions
from ralm.records import Request
from tests.api import faults
from tests.api.backings import OfTable
from tests.api.dialects import (
    VLLM,
    Call,
    Dialect,
    Handler,
    LlamaCpp,
    LlamaCppPython,
    OpenAI,
    TextOnly,
    TransformersServe,
)
from tests.api.scripted_server import Request as Sent, ScriptedServer
from tests.api.served import (
    EXACT,
    VOCABULARY,
    ChatsOnly,
    NewChatsOnly,
    Ollama,
    behind,
    check_sentence,
    opened,
    served,
)
from tests.api.writing import Json
from tests.campaign import sampled
from tests.cli.program import done, ralm

TABLE = OfTable(seed=3, vocabulary=VOCABULARY)
SERVERS: dict[str, Dialect] = {**EXACT, "llama-cpp-python": LlamaCppPython()}


def asked_how(model: ApiModel) -> tuple[str, int, bool, str, int]:
    asking = model.capabilities.config
    return asking.backend, asking.top_logprobs, asking.as_ids, model.tier, model.max_length


@pytest.mark.parametrize(
    ("dialect", "found"),
    [
        (OpenAI(), ("echo", 5, True, "chosen", UNLIMITED)),
        (OpenAI(most_likeliest=20), ("echo", 20, True, "chosen", UNLIMITED)),
        (OpenAI(most_likeliest=1), ("echo", 1, True, "chosen", UNLIMITED)),
        (OpenAI(echoes=False), ("completions", 5, True, "top_k", UNLIMITED)),
        (VLLM(), ("vllm", 20, True, "chosen", 254)),
        (VLLM(max_logprobs=100), ("vllm", 100, True, "chosen", 254)),
        (VLLM(max_logprobs=1), ("vllm", 1, True, "chosen", 254)),
        (VLLM(knows_token_ids=False), ("echo", 20, True, "chosen", 254)),
        (LlamaCpp(), ("llama.cpp", 100, True, "chosen", 255)),
        (LlamaCppPython(), ("completions", 100, False, "top_k", UNLIMITED)),
        (LlamaCppPython(logits_all=False), ("text", 0, False, "text", UNLIMITED)),
        (TextOnly(), ("text", 0, False, "text", UNLIMITED)),
        (TextOnly(refuses=True), ("text", 0, False, "text", UNLIMITED)),
        (TransformersServe(), ("text", 0, False, "text", UNLIMITED)),
        (ChatsOnly(), ("chat", 20, False, "top_k", UNLIMITED)),
        (NewChatsOnly(), ("new chat", 20, False, "top_k", UNLIMITED)),
        (NewChatsOnly(tells=False), ("new text chat", 0, False, "text", UNLIMITED)),
    ],
    ids=str,
)
def test_what_is_found(dialect: Dialect, found: Any) -> None:
    with served(TABLE, dialect, options={"retries": 0}) as (server, model):
        assert asked_how(model) == found
        assert len(server.posts) < 30
        check_figures(model, TABLE)


def test_a_model_that_writes_no_greedy_text_is_refused_with_the_reason() -> None:
    refused = pytest.raises(ModelError, match="'temperature' is not supported with this model")
    with refused, served(TABLE, NewChatsOnly(greedy=False), options={"retries": 0}):
        pass


def test_ollama_is_named_with_what_to_use_instead() -> None:
    with ScriptedServer(TABLE, Ollama()) as server:
        with pytest.raises(UsageError, match="is Ollama, .* llama-server of llama.cpp") as raised:
            opened(server)
        check_sentence(raised.value)
        assert not server.posts


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("likeliest", [1, 1000])
def test_as_many_likeliest_as_the_options_ask_for_and_the_server_lists(kind: str, likeliest: int) -> None:
    most = {"echo": 5, "vllm": 20, "llama.cpp": VOCABULARY}[kind]
    with served(TABLE, EXACT[kind], options={"top_logprobs": likeliest}) as (_, model):
        assert model.backend.name == kind
        assert model.backend.top_logprobs == min(likeliest, most)
        check_figures(model, TABLE)


def requests() -> list[Request]:
    random = np.random.default_rng(0)
    return [Request(random.integers(2, 90, 5), random.integers(2, 90, 6), random.integers(2, 90, 4)) for _ in range(4)]


def check_figures(model: ApiModel, backing: OfTable) -> None:
    """The figures are exact, or there are none."""
    expected = Scorer(backing, progress=False).log_probs(requests())
    if model.tier == "chosen":
        for one, other in zip(Scorer(model, progress=False).log_probs(requests()), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        return
    with pytest.raises(UsageError, match="does not return log-probabilities of given texts"):
        Scorer(model, progress=False).log_probs(requests())


FAULTS: Sequence[faults.Fault] = [
    faults.EchoIgnored(),
    faults.BeginAdded(),
    faults.OneShort(),
    faults.OneLong(),
    faults.NoFirstNull(),
    faults.InTheMiddle(None),
    faults.InTheMiddle(math.nan),
    faults.InTheMiddle(0.5),
    faults.SameText(40, 41),
]


@pytest.mark.parametrize("kind", sampled(SERVERS, "vllm", "llama.cpp"))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_server_with_a_fault_gives_no_wrong_figure(kind: str, fault: faults.Fault) -> None:
    """The probe takes another way or refuses; what it then gives is right, or one sentence."""

    def faulty(sent: Sent) -> faults.Fault | None:
        return fault if sent.method == "POST" else None

    try:
        with served(TABLE, SERVERS[kind], faults=faulty, options={"retries": 0}) as (_, model):
            check_figures(model, TABLE)
    except RalmError as error:
        check_sentence(error)


def test_a_bos_that_the_server_puts_before_texts_is_taken_into_account() -> None:
    """vLLM and the like do so with texts; ids are read as they are. Where only text is taken, the BOS is in front."""
    begins = OfTable(seed=3, vocabulary=VOCABULARY, begins=True)
    with served(begins, LlamaCppPython(), options={"retries": 0}) as (_, model):
        assert model.capabilities.config.begin == 1
        tokens = np.append(1, begins.tokenizer.encode("The list"))
        given = model.continuations().next_tokens([tokens])
        row_V = begins.log_probs(tokens.tolist())[-1]
        assert given.tokens_BC is not None
        np.testing.assert_allclose(given.log_probs_BC[0], row_V[given.tokens_BC[0]], atol=1e-5)
        with pytest.raises(ServerError, match="`bos`"):
            model.continuations().next_tokens([tokens[1:]])
    for dialect in EXACT.values():
        with served(begins, dialect) as (_, model):
            check_figures(model, begins)


@pytest.mark.parametrize("kind", ["vllm", "llama-cpp-python"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.Status(500), "failed (500: "),
        (faults.HtmlPage(200), "not with a JSON object; check that it is the URL of an API."),
        (faults.Cut(), "cannot be reached or broke off"),
        (faults.Status(200, body={"choices": []}), "the server's answer has no "),
    ],
    ids=str,
)
def test_a_server_that_cannot_be_asked(kind: str, fault: faults.Fault, said: str) -> None:
    def failing(sent: Sent) -> faults.Fault | None:
        return fault if sent.method == "POST" else None

    with ScriptedServer(TABLE, SERVERS[kind], faults=failing) as server:
        with pytest.raises(ModelError) as raised:
            opened(server, retries=0)
        assert said in str(raised.value)
        check_sentence(raised.value)
        assert "ralm-api" not in {thread.name for thread in threading.enumerate()}, "the client is closed"


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
def test_a_wrong_key(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(TABLE, SERVERS[kind], key="sekret") as server:
        with pytest.raises(ServerError, match="needs a key .401: .*RALM_API_KEY") as raised:
            opened(server)
        check_sentence(raised.value)
        monkeypatch.setenv("RALM_API_KEY", "sk-wrong-0123456789")
        with pytest.raises(ServerError, match="rejected the key in the environment variable RALM_API_KEY") as raised:
            opened(server)
        check_sentence(raised.value)
        assert "sk-wrong-0123456789" not in str(raised.value)
        monkeypatch.setenv("RALM_API_KEY", "sekret")
        model = opened(server, retries=0)
        check_figures(model, TABLE)
        model.client.close()


@pytest.mark.parametrize("dialect", [OpenAI(), VLLM(), LlamaCpp(), OpenAI(echoes=False)])
def test_an_unknown_model(dialect: Dialect) -> None:
    with ScriptedServer(TABLE, dialect) as server:
        with pytest.raises(ModelError, match="has no model another") as raised:
            opened(server, model="another")
        check_sentence(raised.value)


@pytest.mark.parametrize(("kind", "family"), [("vllm", "llama"), ("vllm", "gpt2"), ("llama-cpp-python", "llama")])
def test_the_tokenizer_of_another_model(kind: str, family: str, tiny_folders: dict[str, Path]) -> None:
    folder = str(tiny_folders[family])
    with ScriptedServer(behind(), SERVERS[kind]) as server:
        with pytest.raises(ModelError, match="name another `tokenizer`") as raised:
            opened(server, tokenizer=folder, retries=0)
        assert folder in str(raised.value)
        check_sentence(raised.value)


@pytest.mark.parametrize("kind", EXACT)
def test_what_was_found_is_used_again(kind: str) -> None:
    """A later process asks for the greedy tokens alone; if they are others, so is the model, and all is found anew."""
    backing = OfTable(seed=3, vocabulary=VOCABULARY)
    with ScriptedServer(backing, EXACT[kind]) as server, ExitStack() as models:

        def load(**options: Any) -> tuple[ApiModel, int]:
            before = len(server.posts)
            model = opened(server, **options)
            models.callback(model.client.close)
            return model, len(server.posts) - before

        first, asked = load()
        again, asked_again = load()
        assert asked > 3
        assert asked_again == 1
        assert again.capabilities == first.capabilities
        anew, asked_anew = load(load=probe_server)
        assert (anew.capabilities, asked_anew) == (first.capabilities, asked)
        check_figures(first, backing)
        scored = len(server.posts)
        check_figures(again, backing)
        assert len(server.posts) == scored

        server.backing = OfTable(seed=4, vocabulary=VOCABULARY)
        other, asked_other = load()
        assert asked_other >= asked
        assert other.capabilities.identity != first.capabilities.identity
        check_figures(other, server.backing)


def test_chats_of_one_name_on_two_servers_are_two_models() -> None:
    identities = []
    for seed in (2, 3):
        with served(OfTable(seed=seed, vocabulary=VOCABULARY), ChatsOnly()) as (_, model):
            assert model.backend.name == "chat"
            identities.append(model.capabilities.identity)
    assert identities[0] != identities[1]


@pytest.mark.parametrize("dialect", [VLLM(), LlamaCpp()])
def test_other_weights_that_write_the_same_tokens_are_another_model(dialect: Dialect) -> None:
    """Such as those of another quantisation, if the server says which weights it has loaded."""
    with served(TABLE, dialect) as (server, model):
        known = model.capabilities.identity
        again = opened(server)
        assert again.capabilities.identity == known
        again.client.close()
        server.dialect = cast("Dialect", OtherWeights(dialect))
        other = opened(server)
        assert other.capabilities.identity != known
        assert other.capabilities.greedy == model.capabilities.greedy
        other.client.close()


@pytest.mark.parametrize("dialect", [VLLM(), ChatsOnly(), TextOnly()], ids=str)
def test_figures_that_are_asked_for_again(dialect: Dialect) -> None:
    with served(TABLE, dialect) as (server, model):
        assert cache_difference(model) == (None if model.tier == "text" else 0)
        server.faults = lambda sent: faults.Warmer() if server.times_asked[sent.asked] > 1 else None
        moved = cache_difference(model)
        assert moved is None if model.tier == "text" else (moved or 0) > 0.01


class OtherWeights:
    """A server that has loaded the same weights from somewhere else, with fewer bits."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        return {**self._dialect.routes(), ("GET", "/v1/models"): self.models}

    def models(self, call: Call) -> Json:
        listed = self._dialect.routes()["GET", "/v1/models"](call)
        assert isinstance(listed, dict)
        [card] = listed["data"]
        meta = {**card["meta"], "size": 4_000_000} if "meta" in card else None
        return {**listed, "data": [{**card, "root": "/models/of-8-bits"} if meta is None else {**card, "meta": meta}]}


def test_a_way_that_failed_is_tried_again_by_the_next_process() -> None:
    """A failure may be over by then; what was found without that way is not kept."""
    with ScriptedServer(TABLE, OpenAI(), faults=[faults.Status(500)] * 4) as server:
        models = [opened(server, retries=0) for _ in range(2)]
        assert [model.capabilities.config.describe() for model in models] == ["echo of text", "echo of token ids"]
        for model in models:
            model.client.close()


def test_a_server_that_names_no_tokenizer() -> None:
    with ScriptedServer(behind(), ChatsOnly(), model="no-such/model") as server:
        with pytest.raises(UsageError, match="`ralm ask` and `ralm serve` need: name it as `tokenizer`"):
            load_api_model(f"{server.url}#no-such/model")
        assert not server.posts
    with pytest.raises(ServerError, match="cannot be reached"):
        load_api_model(f"{server.url}#no-such/model", ApiOptions(retries=0))


SHORT_TABLE = OfTable(seed=2, vocabulary=VOCABULARY)
SILENT: list[Dialect] = [OpenAI(), TransformersServe()]


@pytest.mark.parametrize("dialect", SILENT)
def test_a_server_that_does_not_say_it(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    with served(SHORT_TABLE, dialect) as (_, model):
        assert model.max_length == UNLIMITED
    [told] = caplog.messages
    assert told.endswith("does not report its length; write context_length=N, or long texts may be cut")
    with served(SHORT_TABLE, dialect, options={"context_length": 100}) as (_, model):
        assert model.max_length == 100 - model.backend.reserved_tokens
    with served(SHORT_TABLE, dialect) as (_, model):
        assert model.max_length == UNLIMITED, "what was found out before has no part in it"


def test_options_lower_the_length_that_a_server_says_and_cannot_raise_it() -> None:
    said = "`context_length` is 300, and URL says that its model reads 256 tokens: lower it or leave it out."
    with served(SHORT_TABLE, VLLM()) as (server, model):
        assert model.max_length == 254
        sent = len(server.posts)
        again = opened(server, context_length=50)
        assert (again.max_length, again.capabilities.identity) == (48, model.capabilities.identity)
        assert len(server.posts) == sent + 1, "nothing else is found out anew"
        again.client.close()
        with pytest.raises(UsageError, match=re.escape(said.replace("URL", server.url))):
            opened(server, context_length=300)


def test_a_plan_beyond_it_is_refused_before_anything_is_asked() -> None:
    with served(SHORT_TABLE, OpenAI(), options={"context_length": 40}) as (server, model):
        sent = len(server.posts)
        with pytest.raises(UsageError, match="38"):
            evaluate_text("The list. " * 9, model, PlanOptions(max_length=60, document_tokens=8))
        assert len(server.posts) == sent
        evaluate_text("The list. " * 9, model, PlanOptions(max_length=30, document_tokens=8, stride=4))
        longest = max(len(request.body["prompt"]) for request in server.posts[sent:])
        assert longest <= 39


def test_the_probe_names_the_flag(tmp_path: Path) -> None:
    backing = OfTable(seed=2, vocabulary=VOCABULARY)
    with ScriptedServer(backing, TransformersServe(), model="m") as server:
        asked = ["probe", f"{server.url}#m", "--lm-args", f"tokenizer=ralm-tiny,answers={tmp_path / 'a.sqlite'}"]
        told = done(*asked)
        assert "not reported; write --lm-args context_length=N" in told.out
        assert "asked again         no figures" in told.out
        assert told.err == ""
        assert "reads at once       99 tokens" in ralm(*asked, "--lm-args", "context_length=100").out
