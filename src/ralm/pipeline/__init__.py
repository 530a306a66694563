"""Where the stages meet, over one table: plan, retrieve, choose, read.

    text --> prepare_text --> a PassageSource: hits of each stride --> read: rerank, put in front, score -->
    ScoredTokens

Each step takes a table with a row per stride and gives one; none knows how another did its work.
"""
