"""Recipes: every table and figure of both papers, one command each.

in_context_ralm.toml, replug.toml, analysis.toml
                 the tables and figures, with the papers' figures, and analyses of our own
readings.toml    how the papers read texts and questions; describes the keys of those files
resources.toml   data and models that recipes read; resources.py has their type
catalogue.py     all recipes by name, made of that data
recipe.py        a recipe: cells, orders, figure; scales
steps.py         the commands that a recipe runs, as a graph
folder.py        the folder where steps are found by everything that decides them
runner.py        runs the steps, or writes them as a shell script
inputs.py        writes data sets of the hub as files, and stand-ins
measures.py      figures of finished steps
results.py       measures a recipe and writes its table; figures.py draws it
"""
