"""What earlier versions had, and what to use instead: options, commands, and values of options.

A command line, a file of settings, a request or a folder that names one of them gets its sentence.
"""

import re
from collections.abc import Iterator
from typing import Final

_OF_ENCODERS: Final = (
    "query-encoder pooling normalize titles no-titles query-length passage-length query-keeps dtype device "
    "requests-at-once timeout retries max-requests answers"
).split()
_KEYS: Final = {
    "--reader ensemble:temperature": ("weights-temperature",),
    "--reader concatenation:KEY": ("cut-together", "order"),
    "--mixer posterior:KEY": ("eta", "decay", "evidence"),
    "--mixer contrast:KEY": ("alpha",),
    "--rerank predictive:cross_encoder": ("reranker",),
    "--rerank NAME:KEY": ("candidates",),
    "--rerank zero-shot:KEY": ("rerank-lm", "rerank-tokens", "rerank-decay", "rerank-rank-weight"),
    "--retriever dense:KEY": ("vectors", "query-encoder", "any-encoder", "nprobe", "ef-search"),
    "--retriever hybrid:KEY": ("fusion", "dense-weight"),
    "--retriever random:KEY": ("seed",),
    "--lm-args KEY": (
        *("dtype", "device", "revision", "trust-remote-code", "quantised", "adapter", "attention", "passage-cache"),
        *("passage-cache-file", "tokenizer", "top-logprobs", "context-length", "requests-at-once", "timeout"),
        *("retries", "max-requests", "dry-run", "answers"),
        *(f"{command} --ray" for command in ("eval", "qa", "signals", "worth", "recipe")),
    ),
    "--lm-args template_arguments": ("template-argument",),
    "--encoder-args KEY": tuple(f"{command} --{key}" for command in ("index", "encode") for key in _OF_ENCODERS),
    "--fields KEY": ("id-field", "text-field", "title-field", "metadata-field", "no-metadata"),
    "--limits KEY": ("body-bytes", "cached-tokens", "max-documents", "max-new-tokens"),
    "--limits prompt_tokens": ("serve --max-tokens",),
    "--limits requests_at_once": ("max-concurrency",),
    "--limits requests_waiting": ("max-queue",),
    "--limits seconds": ("request-seconds",),
    "--prompt chat:KEY": ("ask --system", "qa --system", "qa --turns"),
}
"""Options that became keys of parts, by the way to write the key."""
_PARTS: Final = {
    name: f"write the key of its part, `{way.replace('KEY', key.replace('-', '_'))}=...`"
    for way, names in _KEYS.items()
    for name in names
    for key in [re.sub("^no-|^rerank-|^max-(?!requests)|-field$", "", name.rpartition("--")[2])]
}
_SENTENCES: Final = {
    "leave it out; it is fixed at what was its default, or gained nothing (CHANGELOG.md)": (
        *("all-bodies-bytes", "text-bytes", "body-seconds", "shutdown-seconds", "chunk-tokens", "max-texts"),
        *("max-logprobs", "max-queries", "max-connections", "compile", "gate", "train gate", "lexical-weights"),
        *("robust", "merge", "signals --evidence", "signals --no-evidence", "eval --no-plot"),
        *(f"{command} --template-argument" for command in ("eval", "signals", "worth")),
        *("index --training-sample", "encode --training-sample"),
    ),
    "leave it out; `ralm retrieve` keeps the passages of a text in a file for `--retrieved`": ("cache",),
    "search with `--where`, or `--json` and count the metadata of the hits": ("facets",),
    "correct the words of the query; passages that have any of its words are found": ("fuzzy",),
    "set one key in RALM_SERVE_KEY; a proxy such as LiteLLM has keys with limits": ("keys",),
    "use `--audit-log FILE --audit-texts`": ("log-prompts",),
    "use `mixer=posterior:eta=4,decay=2`, which is as good": (
        *("learned", "mixer-weights", "mixer=learned", "train mixer"),
    ),
    "use `--lm-args max_requests=N`; LiteLLM and providers limit money": ("max-cost", "prices"),
    "with `--reader ensemble:temperature=1e6` the weights before any evidence are equal": (
        *("start-weights", "start=uniform"),
    ),
    "search for plain words; `--where` and `--path` choose titles and documents": ("syntax",),
    "it gained less than `contrast`; use that to generate, or `posterior`": ("alpha-floor", "mixer=adaptive-contrast"),
    "it gained nothing; use `mixer=posterior`": ("backoff-margin", "mixer=backoff", "mixer=prior", "none-score"),
    "it lost 15%; use `mixer=posterior`": ("entropy-temperature", "mixer=entropy"),
    "leave it out; `/retrieve` puts the title before the text, and `/search` has both apart": ("serve --contents",),
    "use `--where`, or leave these documents out of the index": ("serve --forbidden-titles",),
    "leave it out; a reverse proxy shares requests among several servers of one index": ("workers",),
    'use `--where \'id not in ("ID", "ID")\'`': ("forbidden-documents",),
    "in a clone, `pip install --constraint requirements/locked.txt .` installs tested versions": (
        *("check --environment",),
    ),
    "use `ralm qa`, which chooses if the questions have choices": ("ralm choice",),
    "use `posterior`; `mixer=contrast` generates text, and does not score it": ("eval --alpha",),
    "use `ralm info INDEX --documents`": ("ralm documents",),
    "use `ralm sync INDEX SOURCE`, which replaces documents, and reads them as the index was built": ("update",),
    "leave it out; one machine indexes Wikipedia in 15 minutes, and `ralm encode --ray` adds vectors": (
        *("index --parts", "index --ray", "index --shards"),
    ),
    "use `ralm report RUN RUN`": ("compare",),
    "use `ralm search INDEX --topics FILE --qrels FILE`; `--out` is `--run-out` there": ("ralm judge",),
    "write `ralm recipe` to list, `ralm recipe NAME` to show, or `ralm recipe NAME --out DIR` to run": (
        *("recipe list", "recipe show", "recipe run"),
    ),
    "rerankers that were fitted to them gained nothing on questions; give training text": ("signals --questions",),
    "use `--over KEY=v1,v2` of `ralm eval` or `ralm qa`": ("eval --values", "qa --values", "ralm curve", "ralm sweep"),
    "use `--fields question=NAME,answers=NAME,choices=NAME,subject=NAME`": tuple(
        f"qa --{name}-field" for name in ("question", "answers", "answer", "choices", "subject")
    ),
    "use `--prompt replug` to judge texts, and `--join answers` to read what is written as a letter": ("qa --score",),
    "leave it out; a cross-encoder is trained, and `--rerank lexical` needs no training": ("train reranker --kind",),
    "leave it out; `--evaluate-every` is the steps between checkpoints too": (
        *("train reranker --checkpoint-every", "train retriever --checkpoint-every"),
    ),
    "it chose `--reader ensemble --documents 4 --mixer posterior` on both corpora; use that": ("tune",),
    "leave it out; leaving documents out gained nothing, and `--distinct text` skips copies": ("worth --prune",),
    "use `/search` or `/retrieve`, which find the same passages and filter by `where`": (
        "/api/search",
        "/v1/vector-stores",
    ),
    "a server such as TEI or vLLM ranks texts; `rerank` ranks the passages of an index": (
        *("/rerank", "/v1/rerank", "/v2/rerank", "cross-encoder"),
    ),
    "load the tokenizer of the model in the client": ("/tokenize", "/detokenize", "/tokenizer-info"),
    "a server such as TEI or vLLM encodes texts; a server behind this one is still asked": ("/v1/embeddings",),
    "use `/v1/chat/completions`, which has streams and sources too": ("/v1/responses",),
}
"""What to use instead, which continues "NAME was removed: ", with the names: an option without dashes (`gate`), a
command (`tune`, or `ralm documents` if a setting has its name), an option of one command (`signals --questions`), an
option and its value (`mixer=entropy`), or a route of the server (`/rerank`)."""
SUCCESSORS: Final = {name: sentence for sentence, names in _SENTENCES.items() for name in names}


def removal_of(name: str) -> str | None:
    """Return a sentence if `name` was removed or became a key of a part, else None; dashes, underscores and backticks
    do not matter."""
    key = _key(name)
    return _sentence(name, {**_PARTS, **SUCCESSORS}[key]) if key in SUCCESSORS or key in _PARTS else None


def removed_settings(config: object) -> Iterator[str]:
    """Yield a sentence for each setting in nested settings of a folder that was removed, unless it was off."""
    for name, value in config.items() if isinstance(config, dict) else ():
        key = next((key for key in (_key(f"{name}={value}"), _key(name) if value else "") if key in SUCCESSORS), None)
        if key is not None:
            yield _sentence(f"{name}={value}" if "=" in key else name, SUCCESSORS[key])
        else:
            yield from removed_settings(value)


def _key(name: str) -> str:
    return name.strip("-`").replace("_", "-")


def _sentence(name: str, successor: str) -> str:
    name, equals, value = name.partition("=")
    shown = f'{name}="{value}"' if equals else name
    return f"`{shown}` was removed: {successor}."
