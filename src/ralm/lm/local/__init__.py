"""Language models that run in this process, through torch and transformers."""
