"""How a model reads passages: plans of strides, documents before the context, and generated text."""
