"""Whether the passages of a corpus help a language model.

sequential.py  tests gains at several looks, at a level that holds over all of them
held_out.py    the texts or questions that a verdict is measured on
measure.py     what the first passage gains on each of them, within a time
verdict.py     the verdict, its figures and its sentence
"""
