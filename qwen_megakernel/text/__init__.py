"""Text before it is spoken: cleaned, cut into parts at sentences, and made into token ids.

Read `cleaning` first (`clean`, `validate`), then `tokenizer` (`TextTokenizer`, whole texts and
`TextStream`), `parts` (where a text is cut, whole or as it arrives), `sentences` and `languages`
(names, BCP-47 codes, "auto").

Other rooms take these names, `parts.TextPart`, `PartCutter`, `EncodedText` and `split`,
`cleaning.MAX_CHARS`, `languages.AUTO`, `resolve_language` and `sentences.unspeakable`.
"""
