"""Language models behind a server's API: OpenAI's and the many that speak it, and servers' own endpoints.

    endpoint.py       the name of a model, its address and key, and the options
    transport.py      one request, and the errors of servers in a sentence
    client.py         many requests: in order, several at once, equal ones once
    budget.py         usage, and the limit of requests
    upstream.py       requests that `ralm serve` passes on
    store.py          stored answers
    predictions.py    a server's prediction of one next token
    backends/         requests and answers of each kind of server
    servers.py        the kinds of servers, and what one can do
    tokenizers.py     the tokenizer of a model
    probe.py          first contact: the best backend that works
    model.py          the language model, the texts that it continues, several tokens ahead, and its dry run

Needs the extra `api`, except for `endpoint.py`. No other package imports `openai` or `httpx2`.
"""
