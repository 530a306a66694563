"""`ralm serve`: OpenAI's API in front of a frozen model, with passages before every prompt."""
