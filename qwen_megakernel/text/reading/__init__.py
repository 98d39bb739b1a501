"""What a text means, in words: Markdown, a lexicon, numbers, dates, money, abbreviations.

Read `reader` first (`TextReader`, which reads one text, whole or in pieces), then `spoken` (pieces
that know which characters they stand for), `segments` (how much of an open text is held back),
`markdown`, `lexicon`, `grammar` (what an expression looks like) and `language` (what all languages
make of it; `english` and its neighbours are the tables of one language each).

Other rooms take `reader.TextReader` and `Reading`, `spoken.Piece` and `lexicon.Lexicon`.
"""
