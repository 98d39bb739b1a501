"""Texts that are hard to divide, drawn by hypothesis: pieces that merge, and all of Unicode."""

from hypothesis import strategies as st

# These make tokenising in pieces hard: contractions, digits, marks that compose (also across
# another mark, also Hangul), runs of white space, line ends after punctuation, joined emoji.
TRICKY = [" ", "  ", "\u00a0", "\u3000", "\n", "\r\n", "\n\n", "\t", "\x00", "\x0b", "\x85"]
TRICKY += ["a", "b", "Z", "e", "é", "'", "’", "s", "re", "'ll", "VE", "1", "42", "½", "<|im_end|>"]
TRICKY += [".", "!", "?!", "...", "-", "=", "<", "*", "_"]
TRICKY += ["\u0301", "\u0327", "\u0323", "\u0338", "\u1112", "\u1161", "\u11ab", "가", "中文", "。"]
TRICKY += ["，", "日本", "カ", "\u3099", "ไทย", "\u0e49", "न", "\u093c", "\u09c7", "\u09be"]
TRICKY += ["😀", "\u200d", "\ufe0f", "🏽", "\ufeff", "\ud83d", "\ude00"]
tricky_texts = st.lists(st.sampled_from(TRICKY), max_size=25).map("".join)
any_texts = tricky_texts | st.text(st.characters(exclude_categories=[]), max_size=40)
