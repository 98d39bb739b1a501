"""Turns a written text into the words to speak: "$12.50" into "twelve dollars and fifty cents".

An expression is a part of a text that is not spoken as it is written: a number, a date, a price, an
abbreviation, a web address. The package also removes the marks of Markdown and applies lexicons.

Read `reader` first (`TextReader` reads one text, which may arrive in pieces), then `spoken` (pieces
of spoken text with the characters that they stand for), `typography` (one form for each mark),
`markdown` and `lexicon`. An expression is read in three steps: `segments`, `joining` and the rules
of `language` find it and its class (`grammar` tries them); its surroundings and the word before it
decide what else it may be; `words` says it. `english` and the modules beside it hold the rules of
one language each, and the files in `language_tables` its words (see `tables`).

Other rooms use `reader.TextReader` and `Reading`, `spoken.Piece` and `lexicon.Lexicon`.
"""
