"""The routes, a file for each family; each checks a request, starts a job in a thread, and passes on what it yields."""
