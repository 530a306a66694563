"""OpenAI's requests, answers and error bodies as JSON; knows nothing of HTTP or of what is computed."""
