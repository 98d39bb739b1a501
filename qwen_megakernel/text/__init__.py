"""Prepares text for speech: cleans it, cuts it into parts at sentences, and makes token ids.

Read `intake` first (the way of one request's text into parts), then `request_text` (from what the
user wrote to the words that are spoken), `cleaning` (`clean`, `validate`), `parts` (where a text is
cut), `tokenizer` (`TextTokenizer` for whole parts, `TextStream` for parts that arrive in pieces),
`sentences` and `languages` (names and codes).

Other rooms use the names above, `intake.TextIntake` and `new_intake`, `parts.TextPart` and
`TextEncoding`, `cleaning.MAX_CHARS`, `languages.AUTO`, `resolve_language` and
`sentences.unspeakable`.
"""
