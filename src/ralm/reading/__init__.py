"""How passages meet the model: plans of strides, documents placed before the context, generation."""
