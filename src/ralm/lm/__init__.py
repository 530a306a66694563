"""Token ids in, log-probabilities out: frozen causal language models and their tokenizers."""
