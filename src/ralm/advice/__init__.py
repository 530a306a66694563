"""Advice on a corpus: whether its passages help a language model.

sequential.py  tests a gain at several looks, at a level that holds over all of them
held_out.py    the texts or questions that a verdict is measured on
measure.py     the gains of each document with the first passage, random ones, the best of several, an ensemble
verdict.py     the verdict, its figures and its sentence
"""
