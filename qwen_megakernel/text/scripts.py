"""Characters of East Asian scripts, as parts of classes in regular expressions."""

HAN = r"\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = r"\u3040-\u30ff\uff66-\uff9f"  # the second range is half-width katakana
UNSPACED = HAN + KANA  # scripts without spaces, each character of which is about a syllable
VOICING_MARKS = "\u3099\u309a\uff9e\uff9f"  # kana that change the kana before them
