"""Where the stages meet, over one table: plan, retrieve, choose, read.

    text --> prepare_text --> PassageSource.find: hits of each stride --> read: rerank, put in front, score

Each step takes a table with a row per stride and gives one. No step knows how another did its work.
"""
