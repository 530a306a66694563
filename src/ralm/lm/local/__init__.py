"""Language models that run here, through torch and transformers."""
