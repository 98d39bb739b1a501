"""Prepares text for speech: cleans it, cuts it into parts at sentences, and makes token ids.

Read `cleaning` first (`clean`, `validate`), then `tokenizer` (`TextTokenizer`, whole texts and
`TextStream`), `parts` (where a text is cut, whole or as it arrives), `request_text` (from what the
user wrote to the words that are spoken), `sentences` and `languages` (names, BCP-47 codes, "auto").

Other rooms take these names, `parts.TextPart`, `PartCutter`, `EncodedText` and `split`,
`request_text.RequestText`, `cleaning.MAX_CHARS`, `languages.AUTO`, `resolve_language` and
`sentences.unspeakable`.
"""
