"""Advice on a corpus: whether its passages help a language model.

sequential.py  tests gains at several looks, at a level that holds over all of them
held_out.py    the texts or questions that a verdict is measured on
measure.py     the gains of each document, within a time: the first passage, then random ones, the best of several, an
               ensemble
verdict.py     the verdict, its figures and its sentence
"""
