"""A server that changes its model in between, and servers that only look like it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ralm.errors import BudgetError, ServerError
from ralm.lm.api.model import ApiModel
from ralm.records import FloatArray, ScoringSequence
from tests.api.backings import OfTable
from tests.api.dialects import VLLM, Call, Dialect, Handler, LlamaCpp
from tests.api.faults import Fault, Status, Swapped
from tests.api.scripted_server import Request, ScriptedServer
from tests.api.served import VOCABULARY, ChatsOnly, opened, served
from tests.api.writing import Json

TABLE = OfTable(seed=2, vocabulary=VOCABULARY)
CHANGED = "changed its model during the job: it continues a known text with other"


def passes(count: int, first: int = 0) -> list[ScoringSequence]:
    """Texts of which each is another one, with one target each."""
    return [
        ScoringSequence(np.array([4 + number % 90, 5 + number // 90, 7]), np.array([2]))
        for number in range(first, count)
    ]


def scored(model: Any, several: Sequence[ScoringSequence]) -> FloatArray:
    return np.concatenate([*model.score(several)])


def from_request(number: int, fault: Fault) -> Callable[[Request], Fault | None]:
    """A fault of all requests from the one with this number on."""
    return lambda request: fault if request.method == "POST" and request.number >= number else None


def of_first_check(fault: Fault) -> Callable[[Request], Fault | None]:
    """A fault of the first request for many new tokens, those behind the known text."""
    faults = iter([fault])
    return lambda request: next(faults, None) if request.body.get("max_tokens", 0) > 1 else None


def test_a_new_name_of_the_same_model_is_asked_about_once() -> None:
    with served(TABLE, VLLM()) as (server, model):
        scored(model, passes(20))
        sent = len(server.posts)
        server.fingerprint = "fp_of_today"
        found = scored(model, passes(60, 20))
        assert len(server.posts) == sent + 40 + 1
        scored(model, passes(80, 60))
        server.fingerprint = "fp_scripted"
        scored(model, passes(100, 80))
        assert len(server.posts) == sent + 80 + 1
    np.testing.assert_allclose(found, scored(TABLE, passes(60, 20)), atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 16])
def test_another_model_is_noticed_by_its_name_and_nothing_of_it_is_kept(at_once: int) -> None:
    options = {"requests_at_once": at_once}
    with served(TABLE, VLLM(), options=options) as (server, model):
        begin = len(server.posts)
        server.faults = from_request(begin + 50, Swapped())
        with pytest.raises(ServerError, match=CHANGED):
            scored(model, passes(120))
        with pytest.raises(ServerError, match=CHANGED):
            scored(model, passes(121, 120))
        server.faults = ()
        again = opened(server)
        begin = len(server.posts)
        np.testing.assert_allclose(scored(again, passes(120)), scored(TABLE, passes(120)), atol=1e-5)
        assert len(server.posts) == begin + 70, "50 answers were kept"
        again.client.close()


def exact_or_upper(model: ApiModel, begin: int, end: int) -> FloatArray:
    return scored(model.bounds[1] if model.bounds else model, passes(end, begin))


def test_without_a_name_it_is_noticed_after_some_answers_which_are_forgotten(tmp_path: Path) -> None:
    with served(TABLE, LlamaCpp(), options={"requests_at_once": 4}) as (server, model):
        begin = len(server.posts)
        exact_or_upper(model, 0, 200)
        assert len(server.posts) == begin + 200 + 1
        exact_or_upper(model, 200, 240)
        server.faults = from_request(0, Swapped(fingerprint=None))
        with pytest.raises(ServerError, match=CHANGED):
            exact_or_upper(model, 240, 800)
        assert len(server.posts) < begin + 400 + 30
        server.faults = ()
        again = opened(server)
        begin = len(server.posts)
        found = exact_or_upper(again, 0, 260)
        assert len(server.posts) == begin + 60, "those up to the check are kept"
        fresh = opened(server, answers=tmp_path / "others.sqlite")
        np.testing.assert_array_equal(found, exact_or_upper(fresh, 0, 260))
        again.client.close()
        fresh.client.close()


def test_a_name_for_every_answer_means_nothing() -> None:
    """Each is asked about until there are too many; then it is as if there were none."""
    with served(TABLE, VLLM()) as (server, model):
        server.faults = lambda request: Named(f"fp_{request.number}")
        begin = len(server.posts)
        scored(model, passes(300))
        assert len(server.posts) == begin + 300 + 19 + 1
        server.faults = lambda request: Swapped(f"fp_{request.number}")
        with pytest.raises(ServerError, match=CHANGED):
            scored(model, passes(600, 300))
        assert len(server.posts) < begin + 320 + 119 + 70


def test_a_known_text_that_goes_on_in_another_way_once_is_asked_for_again() -> None:
    """Servers that compute in batches now and then choose the other of two tokens that are about as likely."""
    with served(TABLE, VLLM(), options={"requests_at_once": 1}) as (server, model):
        server.fingerprint = "fp_of_today"
        begin = len(server.posts)
        server.faults = of_first_check(Swapped("fp_of_today"))
        found = scored(model, passes(20))
        assert len(server.posts) == begin + 20 + 2
    np.testing.assert_allclose(found, scored(TABLE, passes(20)), atol=1e-5)


def test_a_server_that_is_away_when_it_is_asked_again_is_not_another_model() -> None:
    with served(TABLE, VLLM(), options={"requests_at_once": 1, "retries": 0}) as (server, model):
        server.fingerprint = "fp_of_today"
        server.faults = of_first_check(Status(500))
        with pytest.raises(ServerError, match="failed"):
            scored(model, passes(20))
        np.testing.assert_allclose(scored(model, passes(20)), scored(TABLE, passes(20)), atol=1e-5)


def test_a_budget_that_is_used_up_does_not_stop_the_last_answers() -> None:
    with served(TABLE, LlamaCpp()) as (server, model):
        probed = model.client.usage.requests
        again = opened(server, max_requests=200 + 1)
        assert again.client.usage.requests == 1 < probed
        scored(again, passes(200))
        with pytest.raises(BudgetError):
            scored(again, passes(201, 200))
        again.client.close()


def test_a_chat_is_another_one_if_it_has_another_name() -> None:
    """No text is known that it goes on with; another system alone is none of a chat's business."""
    with ScriptedServer(TABLE, ChatsOnly()) as server:
        model = opened(server)
        assert model.backend.name == "chat"
        ask = [model.backend.generation_request(one.tokens_N, 3) for one in passes(30)]
        list(model.client.answers(ask[:10]))
        server.fingerprint = "fp_of_today"
        begin = len(server.posts)
        list(model.client.answers(ask[10:20]))
        assert len(server.posts) == begin + 10
        server.dialect = Renamed()
        with pytest.raises(ServerError, match="the model has another name"):
            list(model.client.answers(ask[20:]))
        model.client.close()


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


def test_a_dry_run_asks_nothing_of_it() -> None:
    with served(TABLE, VLLM(), options={"dry_run": True}) as (server, model):
        server.fingerprint = "fp_of_today"
        sent = len(server.posts)
        scored(model, passes(20))
        assert len(server.posts) == sent


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


@dataclass(frozen=True)
class Named(Fault):
    """The same model by another name."""

    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Renamed(ChatsOnly):
    """The same with another model behind the name that is asked for."""

    def head(self, call: Call, short: str, kind: str) -> Json:
        return {**super().head(call, short, kind), "model": "another"}
