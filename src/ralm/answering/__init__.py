"""Questions that a language model answers with retrieved passages, and how answers are judged."""
