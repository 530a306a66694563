"""What models behind an API cost, and what they tell: `python -m benchmarks.api`."""
