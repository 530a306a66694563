"""How texts become index terms.

named.py       every analyser by name: what users choose, and what an index records
analyser.py    an analyser as a value, and how it is used on texts
words.py       the words of a text by the Unicode standard, and lower case

english.py     Lucene's EnglishAnalyzer
cjk.py         Lucene's CJKAnalyzer: pairs of Chinese, Japanese and Korean characters
snowball.py    the languages that Snowball has a stemmer for
"""
