"""Searches settings on the front of cost against perplexity, by successive halving over growing parts of a text.

All settings read a few documents; a third goes on to twice as many, until the rest has read all of them (Jamieson and
Talwalkar, 2016, arXiv 1502.07943): those with the lowest perplexity, and those nearest to the front, by their nats per
token above the lowest at no higher cost. Other documents are held out; the settings that are chosen, the defaults
and the plain model read them at the end.

Letters of shapes: S settings, D documents, F settings that have read all documents of the search.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.advice.held_out import count_copies
from ralm.advice.trials import DEFAULTS, NONE, Trial, read_document
from ralm.errors import BudgetError, UsageError
from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.lm.scoring import Scorer
from ralm.options import Option, check_options, seed_option
from ralm.protocols import LanguageModel, Tokenizer
from ralm.records import DoubleArray, IntArray
from ralm.terminal import progress_bar

_FEWEST: Final = 8
"""Documents that the search and the held-out part need each, and settings that read all documents of the search."""
_KEPT: Final = 3
_ROUNDS: Final = 5
_LOWEST: Final = 0.3
_ALWAYS: Final = 2
"""Settings that are always read: without passages, and the defaults."""
_MARGIN: Final = 1.1
_CERTAIN: Final = 8
"""Documents from which on settings are dropped that are above the front with certainty."""
_OF_BUDGET: Final = 0.75
_SHORTEST: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How settings are searched. Raises UsageError if a value is out of range."""

    trials: Annotated[int, Option("Most settings to try; if there are more, they are drawn at random.", minimum=2)] = (
        200
    )
    units: Annotated[int, Option("Most documents to read.", minimum=2 * _FEWEST)] = 96
    tokens: Annotated[
        int, Option("Tokens to read at the beginning of each document.", minimum=_SHORTEST, flag="unit-tokens")
    ] = 256
    held_out: Annotated[
        float, Option("Share of the documents that only the final figures read.", minimum=0.1, maximum=0.9)
    ] = 1 / 3
    max_cost: Annotated[
        float | None,
        Option(
            "Choose a setting that reads at most so many tokens for a token of the text.",
            above=True,
            default_text="no limit",
        ),
    ] = None
    budget: Annotated[float, Option("Minutes to read; then the best settings so far. 0: no limit.")] = 30.0
    seed: Annotated[int, seed_option(None)] = 0

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityChange:
    """By what share a perplexity is lower than another one (below 0: higher), with the 95% interval of a paired
    bootstrap over documents."""

    lower: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{-self.lower:+.1%} ({-100 * self.high:+.1f} to {-100 * self.low:+.1f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """What a setting read and predicted in the search: tokens read for a token of the text (`cost`), the share of the
    plain model's perplexity on the same documents (`ratio`); and for those on the front of all that read as much as
    any, the change of the perplexity."""

    name: str
    toml: str
    stride: int
    query_tokens: int
    documents: int
    cost: float
    ratio: float
    against_none: PerplexityChange | None = None

    @property
    def front(self) -> bool:
        """Whether it is on the front."""
        return self.against_none is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutFigures:
    """The chosen setting on held-out documents: perplexities and costs by name, and changes against others."""

    documents: int
    perplexity: dict[str, float]
    cost: dict[str, float]
    against_none: PerplexityChange
    against_defaults: PerplexityChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The chosen setting, all that were tried, and the figures on held-out documents (None if the budget ended before
    two were read). `stopped`: measured (all documents of the search), or budget."""

    lm: str
    text: str
    stopped: Literal["measured", "budget"]
    searched: int
    chosen: TrialFigures
    trials: Sequence[TrialFigures]
    held_out: HeldOutFigures | None
    standing_in: int
    skipped: str

    @property
    def front(self) -> list[TrialFigures]:
        """The settings on the front, the cheapest first."""
        return sorted((one for one in self.trials if one.front), key=lambda one: one.cost)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        so_far = "so far, when the budget ended, " if self.stopped == "budget" else ""
        what = f"stride {self.chosen.stride}, query of {self.chosen.query_tokens}, {self.chosen.name}"
        best = f"Best {so_far}is {NONE if self.chosen.name == NONE else what}"
        if self.held_out is None:
            return f"{best}; the budget ended before held-out documents were read, so this is open."
        found = self.held_out
        return (
            f"{best}: on {found.documents:,} held-out documents the perplexity changes by {found.against_none} against "
            f"no passages, and by {found.against_defaults} against the defaults (95% intervals)."
        )

    def as_json(self) -> dict[str, JsonValue]:
        """All figures, and the sentence."""
        return {"sentence": self.sentence, **asdict(self)}


def documents_of_tuning(
    texts: Sequence[str], name: str, tokenizer: Tokenizer, options: TuneOptions
) -> tuple[list[str], list[str]]:
    """The documents of the search, and the held-out ones, at random among those that are long enough. UsageError if
    there are too few to hold out any."""
    order = np.random.default_rng(options.seed).permutation(len(texts)).tolist()
    long = (texts[place] for place in order if len(tokenizer.encode(texts[place])) >= _SHORTEST)
    some = [text for text, _ in zip(long, range(options.units), strict=False)]
    if len(some) < 2 * _FEWEST:
        raise UsageError(
            f"{name} has {len(some):,} documents of at least {_SHORTEST} tokens, too few to hold out any: give "
            f"{2 * _FEWEST} or more, or a text of {2 * _FEWEST} blocks of 512 tokens."
        )
    held = min(max(_FEWEST, round(options.held_out * len(some))), len(some) - _FEWEST)
    return some[held:], some[:held]


def drawn(trials: Sequence[Trial], options: TuneOptions) -> list[Trial]:
    """At most `trials` settings, at random; those with a role come first and stay."""
    first = [one for one in trials if one.role]
    others = [one for one in trials if not one.role]
    count = max(0, min(len(others), options.trials - len(first)))
    places = np.random.default_rng(options.seed).choice(len(others), count, replace=False)
    return [*first, *(others[place] for place in sorted(places.tolist()))]


class Search:
    """Reads documents with settings, of which the first two are those without passages and the defaults."""

    def __init__(self, trials: Sequence[Trial], documents: Sequence[str], model: LanguageModel, tokens: int) -> None:
        self.trials, self.documents = trials, documents
        self.nats_SD = np.full((len(trials), len(documents)), np.nan)
        self.read_SD = np.zeros((len(trials), len(documents)))
        self.tokens_D = np.zeros(len(documents), dtype=np.int64)
        self.failed: dict[int, str] = {}
        self._model, self._tokens = Scorer.of(model).model, tokens

    def read(self, settings: Sequence[int], places: Sequence[int], ends: float, title: str) -> bool:
        """Read documents with some settings; returns whether the budget ended first. A setting that cannot be read is
        left out. Raises UsageError if it is the plain model or the defaults."""
        with progress_bar(title, total=len(settings) * len(places)) as advance:
            for place in places:
                scorer = Scorer(self._model, progress=False)
                for setting in settings:
                    if setting in self.failed:
                        continue
                    if time.perf_counter() > ends or not self._read(setting, place, scorer):
                        return True
                    advance()
        return False

    def _read(self, setting: int, place: int, scorer: Scorer) -> bool:
        """Read a document with a setting; returns False if the budget of a server ended."""
        trial = self.trials[setting]
        try:
            found = read_document(trial, self.documents[place], scorer, self._tokens)
        except BudgetError:
            return False
        except UsageError as error:
            if trial.role:
                raise
            self.failed[setting] = str(error)
            return True
        self.nats_SD[setting, place] = found.nats
        self.read_SD[setting, place] = found.read
        self.tokens_D[place] = found.tokens
        return True

    def means(self, setting: int, places: Sequence[int] | None = None) -> tuple[float, float, int]:
        """Nats per token, tokens read per token, and the number of documents, of those that the setting has read."""
        known_D = ~np.isnan(self.nats_SD[setting])
        if places is not None:
            known_D &= np.isin(np.arange(len(known_D)), places)
        tokens = self.tokens_D[known_D].sum()
        if not tokens:
            return math.inf, math.inf, 0
        nats, read = self.nats_SD[setting, known_D].sum() / tokens, self.read_SD[setting, known_D].sum() / tokens
        return float(nats), float(read), int(known_D.sum())

    def ratio(self, setting: int) -> float:
        """The perplexity as a share of that without passages, on the documents that the setting has read."""
        places = np.flatnonzero(~np.isnan(self.nats_SD[setting])).tolist()
        return math.exp(min(700.0, self.means(setting)[0] - self.means(0, places)[0]))

    def change(self, setting: int, other: int, places: Sequence[int], seed: int) -> PerplexityChange:
        """By what share the perplexity of a setting is lower than that of another one, on documents that both read."""
        gains_D1 = (self.nats_SD[other, places] - self.nats_SD[setting, places])[:, None]
        draws = bootstrap_means(gains_D1, self.tokens_D[places], seed=seed)[:, 0]
        low, high = (-math.expm1(-gain) for gain in interval(draws))
        return PerplexityChange(
            lower=-math.expm1(-float(gains_D1.sum() / self.tokens_D[places].sum())), low=low, high=high
        )


def above_front(nats_S: DoubleArray, cost_S: DoubleArray) -> tuple[DoubleArray, IntArray]:
    """The nats per token of each setting above the lowest at no higher cost (0 on the front), and that setting."""
    allowed_SS = cost_S[None, :] <= cost_S[:, None]
    best_S = np.where(allowed_SS, nats_S[None, :], np.inf).argmin(axis=1)
    return nats_S - nats_S[best_S], best_S


def _sizes(documents: int) -> list[int]:
    """The documents that are read after each round: doubling up to all."""
    return [*dict.fromkeys(math.ceil(documents / 2**place) for place in reversed(range(_ROUNDS)))]


def tune(
    trials: Sequence[Trial], model: LanguageModel, texts: tuple[Sequence[str], Sequence[str]], options: TuneOptions,
    name: str = "the text",
) -> Tuning:  # fmt: skip
    """Search the best setting on the first documents, and read the second ones with it; `trials` begin with the plain
    model and the defaults.

    Raises BudgetError if the budget ends before all settings have read one document, UsageError if lengths do not fit.
    """
    documents, held = texts
    begin = time.perf_counter()
    search = Search(trials, [*documents, *held], model, options.tokens)
    ends = begin + 60 * options.budget if options.budget else math.inf
    stops = begin + _OF_BUDGET * (ends - begin)
    alive, done, stopped = [*range(len(trials))], 0, False
    for size in _sizes(len(documents)):
        stopped = search.read(alive, range(done, size), stops, f"Reading {size} documents")
        if stopped:
            break
        done = size
        if size < len(documents):
            alive = [*survivors(search, alive, done, options)]
    read = done or int((~np.isnan(search.nats_SD[alive])).all(axis=0).sum())
    if not read:
        raise BudgetError("the budget ended before every setting had read one document: raise it, or lower `trials`.")
    full = [one for one in alive if not np.isnan(search.nats_SD[one, :read]).any()]
    nats_F, cost_F = np.array([search.means(one, range(read))[:2] for one in full]).T
    on_front = {full[place] for place in np.flatnonzero(above_front(nats_F, cost_F)[0] <= 0)}
    allowed = cost_F <= (options.max_cost or math.inf)
    if not allowed.any():
        raise UsageError(f"no setting reads at most `max_cost` {options.max_cost:g} tokens for one: raise it.")
    chosen = full[int(np.where(allowed, nats_F, np.inf).argmin())]
    changes = {one: search.change(one, 0, range(read), options.seed) for one in on_front}
    figures = {one: _figures(search, one, changes.get(one)) for one in range(len(trials)) if search.means(one)[2]}
    places = range(len(documents), len(documents) + len(held))
    search.read([*dict.fromkeys((0, 1, chosen))], places, ends, "Reading held-out documents")
    source = trials[1].source
    return Tuning(
        lm=Scorer.of(model).name,
        text=name,
        stopped="budget" if stopped else "measured",
        searched=read,
        chosen=figures[chosen],
        trials=[*figures.values()],
        held_out=_held_out(search, chosen, places, options.seed),
        standing_in=0 if source is None else count_copies(search.documents, source.retriever, source.passages),
        skipped=_skipped(search),
    )


def survivors(search: Search, alive: Sequence[int], documents: int, options: TuneOptions) -> Iterator[int]:
    """The settings that go on after a round: a third, at least eight, of which three in ten have the lowest perplexity
    and the others are nearest to the front. Those that are above it with certainty or cost too much do not go on, the
    first two always do."""
    places = range(documents)
    figures = {one: search.means(one, places)[:2] for one in alive if one not in search.failed}
    most = _MARGIN * (options.max_cost or math.inf)
    some = [one for one, (_, cost) in figures.items() if one < _ALWAYS or cost <= most]
    nats_S, cost_S = np.array([figures[one] for one in some]).T
    above_S, best_S = above_front(nats_S, cost_S)
    count = max(_FEWEST, math.ceil(len(figures) / _KEPT))
    lowest = nats_S.argsort(kind="stable")[: math.ceil(_LOWEST * count)].tolist()
    kept = [*dict.fromkeys([*lowest, *np.lexsort((cost_S, above_S)).tolist()])][:count]
    for place, one in enumerate(some):
        other = some[int(best_S[place])]
        certain = documents >= _CERTAIN and other != one and search.change(one, other, places, options.seed).high < 0
        if one < _ALWAYS or (place in kept and not certain):
            yield one


def _figures(search: Search, setting: int, change: PerplexityChange | None) -> TrialFigures:
    trial, (_, cost, documents) = search.trials[setting], search.means(setting)
    return TrialFigures(
        name=trial.name,
        toml=trial.toml,
        stride=trial.plan.stride,
        query_tokens=trial.plan.query_tokens,
        documents=documents,
        cost=cost,
        ratio=search.ratio(setting),
        against_none=change,
    )


def _held_out(search: Search, chosen: int, places: range, seed: int) -> HeldOutFigures | None:
    names = {0: NONE, 1: DEFAULTS, chosen: "chosen"}
    known = [place for place in places if not np.isnan(search.nats_SD[[*names], place]).any()]
    if len(known) < 2:
        return None
    means = {name: search.means(one, known) for one, name in names.items()}
    means.setdefault(NONE, means["chosen"])
    means.setdefault(DEFAULTS, means["chosen"])
    return HeldOutFigures(
        documents=len(known),
        perplexity={name: math.exp(min(700.0, nats)) for name, (nats, _, _) in means.items()},
        cost={name: cost for name, (_, cost, _) in means.items()},
        against_none=search.change(chosen, 0, known, seed),
        against_defaults=search.change(chosen, 1, known, seed),
    )


def _skipped(search: Search) -> str:
    """Which settings were left out, and why; empty for none."""
    if not search.failed:
        return ""
    counted = f"{len(search.failed):,} of {len(search.trials):,} settings"
    return f"{counted} cannot be read and were left out: {next(iter(search.failed.values()))}"
