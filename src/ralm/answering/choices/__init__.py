"""Questions with choices, of which a language model chooses one with retrieved passages (REPLUG, section 6.2: MMLU)."""
