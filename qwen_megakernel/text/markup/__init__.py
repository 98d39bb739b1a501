"""Markup in a text: pauses, speed, volume, language, and how single words are read.

Read `items` first (the parts into which a parser divides a text), then `ssml` (the parser of SSML),
`pauses` (the parser of plain text with "[pause 1.5s]" in it), `script` (the parser of lines that
name their speakers), `values` (the values that attributes may have) and `marked_text` (which turns
items into words, and begins a new passage at each pause and each change of the manner).

Other rooms use `marked_text.MarkedText`.
"""
