"""Text before it is spoken: cleaned, cut at sentences, and made into tokens, whole or streamed.

Read `tokenizer` first (`clean`, `validate`, `split`, `TextTokenizer`, `TextStream`), then
`sentences` (where a text may be cut) and `languages` (names, BCP-47 codes, "auto").

Other rooms take those five names, `MAX_CHARS`, `languages.AUTO`, `resolve_language` and
`sentences.unspeakable`.
"""
