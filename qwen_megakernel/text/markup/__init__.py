"""What a text asks for besides its words: pauses, speed, volume, language, how a word is read.

Read `items` first (what a parser makes of a text), then `ssml` (the parser of SSML), `pauses`
(plain text with "[pause 1.5s]" in it), `values` (what attributes may say) and `marked_text` (items
become words, cut where a pause or another manner of speaking begins).

Other rooms take `marked_text.MarkedText`.
"""
