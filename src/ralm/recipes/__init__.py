"""Recipes: every table and figure of both papers, one command each.

resources.py     what is read from outside: data, models
steps.py         the commands that are run, as a graph
measures.py      what is read off finished steps
recipe.py        a table of measures, with the paper's figures; scales
catalogue.py     all recipes; `in_context_ralm/`, `replug/`, `analyses/` have them
place.py         the folder where steps are found by what decides them
running.py       runs the graph
writing.py       data sets of the hub as files
standing_in.py   what stands in for data and models
estimates.py     what a run will take; what does not fit
results.py       measures a recipe; tables.py and figures.py write it
"""
