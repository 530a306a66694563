"""Evaluation: perplexities, sweeps, the bootstrap, calibration."""
