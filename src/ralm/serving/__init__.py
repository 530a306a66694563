"""`ralm serve`: OpenAI's API for a model that reads passages (docs/serving.md).

Each request is one thread that runs the library's own code; the asyncio side checks, queues, limits and streams.

    options                             what the operator sets, and what a request may change
    indexes, search_service             the indexes, and how requests search them
    service                             the model, and how requests read with it
    model, batcher                      one model for many threads, which reads together what they ask
    prompts, completion, chat           what one request computes, as a generator of events, and its response
    proxy                               requests that the server of the model answers
    requests, answers, errors           OpenAI's JSON
    jobs, middleware                    HTTP: threads and responses, the key and metrics
    routes                              the routes of a model
    retrieval_routes, mcp               the routes of searches, with a model or without
    server, process                     the application, its socket and its signals
"""
