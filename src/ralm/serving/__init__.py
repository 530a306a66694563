"""`ralm serve`: OpenAI's API in front of a model that reads passages (docs/serving.md).

One request is one thread that runs the library's own code; the asyncio side checks, queues, limits and streams.

    options, settings   what the operator says, and what a request may change of it
    indexes             the indexes that are served, by name
    models              one model and its tokenizer, for many threads
    batching            what they ask of a local model is read together
    workers             threads, their queue, and requests that end early
    prompts, writing, scoring, completion, chat    what one request asks, without HTTP; events out
    wire                OpenAI's requests, answers and error bodies
    routes, app         HTTP
    pages               the page at `/`
    security, metrics, running               keys and sizes; figures; the process
"""
