"""`ralm serve`: searches, a proxy before another server, and OpenAI's API for a model that runs here (docs/serving.md).

Each request is one thread that runs the library's own code; the asyncio side checks, queues, limits and streams.

    options                      what the operator sets, and what a request may change
    state                        the indexes, how requests search them, and the names of a model
    search, mcp                  the routes of searches
    proxy, dialects              requests that are passed on, with passages and sources
    local, completion            a model that runs here: its routes, chats and completions
    model, batcher               one model for many threads, which reads together what they ask
    requests, answers, errors    OpenAI's JSON
    jobs, middleware             HTTP: threads and responses, the key, metrics and the audit log
    server                       the application, its socket and its signals
"""
