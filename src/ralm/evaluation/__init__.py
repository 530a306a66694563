"""Evaluation: perplexities, sweeps, and the gain from passages."""
