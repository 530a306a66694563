"""Recipes: every table and figure of both papers, one command each.

in_context_ralm.toml, replug.toml, analysis.toml    the tables and figures, with those of the papers; our analyses
readings.toml, resources.toml    how the papers read texts and questions; what recipes read
catalogue.py     all recipes by name, made of that data; their folder, where steps are found or else run
recipe.py        what a recipe is: cells, orders, figure, steps, resources
inputs.py        checks what recipes read, and writes files of it
measures.py      figures of finished steps
results.py       measures a recipe and writes its table and plot
"""
