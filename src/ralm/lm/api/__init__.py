"""Language models behind a server's API: OpenAI's and the many that speak it, and servers' own endpoints.

    endpoint.py       the name of a model, its address and key, and the options
    http.py           one request, the errors of servers in a sentence, and requests that `ralm serve` passes on
    client.py         many requests: in order, several at once, equal ones once; stored answers, usage and its limit
    answers.py        predictions of next tokens, parsed from answers
    backend.py        the interface of requests and answers; servers.py has those of each kind of server
    tokenizers.py     the tokenizer of a model
    probe.py          first contact: the kind of a server, and the best backend that works
    model.py          the language model, and the texts that it continues

Needs the extra `api`, except for `endpoint.py`. No other package imports `httpx2`.
"""
