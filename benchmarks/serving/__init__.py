"""`ralm serve` through HTTP: requests at once, requests passed on, retrieval, and passages that come again."""
