"""The stages put together: plan, retrieve, choose, read.

    text --> prepare_text --> PassageSource.find: hits of each stride --> read: rerank, put in front, score

Each stage takes a table with a row per stride and returns one. No stage knows how another works.
"""
