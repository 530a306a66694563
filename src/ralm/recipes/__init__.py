"""Recipes: every table and figure of both papers, one command each.

in_context_ralm.toml, replug.toml, analysis.toml    the tables and figures, with those of the papers; our analyses
readings.toml, resources.toml    how the papers read texts and questions; what recipes read
catalogue.py     all recipes by name, made of that data
recipe.py        what a recipe is: cells, orders, figure, steps, resources
folder.py        the folder where steps are found by everything that decides them, or else run
inputs.py        checks what recipes read, and writes files of it
measures.py      figures of finished steps
results.py       measures a recipe and writes its table and plot
"""
