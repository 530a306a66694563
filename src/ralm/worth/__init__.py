"""Whether the passages of a corpus help a language model."""
