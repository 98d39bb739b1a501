"""Prepares text for speech: cleans it, cuts it into parts at sentences, and makes token ids.

Read `cleaning` first (`clean`, `validate`), then `tokenizer` (`TextTokenizer` for whole texts,
`TextStream` for texts that arrive in pieces), `parts` (where a text is cut), `request_text` (from
what the user wrote to the words that are spoken), `sentences` and `languages` (names and codes).

Other rooms use the names above, `parts.TextPart`, `PartCutter`, `EncodedText` and `split`,
`request_text.RequestText`, `cleaning.MAX_CHARS`, `languages.AUTO`, `resolve_language` and
`sentences.unspeakable`.
"""
