"""Language models behind a server's API: OpenAI's and the many that speak it, and servers' own endpoints.

BackendConfig:

    endpoint.py       the name of a model to its address and key
    options.py        how a server is asked
    transport.py      one request: JSON out, JSON in, every failure as one sentence
    client.py         many requests: in order, several under way, nothing asked twice
    store.py          answers that were paid for, in one file
    spending.py       what was asked and what it cost; budgets
    background.py     the thread whose event loop sends requests
    watching.py       a server that changes its model in between is noticed
    rehearsal.py      dry runs

Understanding:

    ways/             how each kind of server is asked, and what its answers say; `ways/way.py` is the interface
    predictions.py    what a server tells of one next token
    names.py, prompts.py, tokenizers.py, bare.py   tokens as servers name and take them
    servers.py        what a server says of itself
    trials.py         a known text, continued and read in any way, whose figures must agree
    probe.py          first contact: the best way that works
    capabilities.py   what was found out

Using:

    model.py          the language model that all of ralm uses
    continuations.py  texts that it continues; several tokens are read ahead

Only this package knows the packages `openai` and `httpx2`. It needs the extra `api`, except for `endpoint.py` and
`options.py`.
"""
