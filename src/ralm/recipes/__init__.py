"""Recipes: every table and figure of both papers, one command each.

icr_*.py, replug_*.py   the tables and figures that the file's name lists (icr: In-Context RALM)
analyses.py             analyses of our own
catalogue.py            all recipes by name
readings.py             how each paper reads a text
resources.py            data and models that recipes read
recipe.py               a recipe: cells, orders, figure; scales
steps.py                the commands that a recipe runs, as a graph
folder.py               the folder where steps are found by everything that decides them
runner.py               estimates and runs the steps
inputs.py               writes data sets of the hub as files, and stand-ins
measures.py             figures of finished steps
results.py              measures a recipe and writes its table; figures.py draws it
"""
