"""The names of a language: the checkpoint's own, ISO 639 codes, BCP-47 tags."""

from collections.abc import Iterable

from qwen_megakernel.errors import UnknownLanguage, did_you_mean
from qwen_megakernel.printable import printable

AUTO = "auto"

# Primary subtags of the languages the releases speak. Several services tag Mandarin as `cmn`.
_NAME_OF_CODE = {
    "zh": "chinese",
    "cmn": "chinese",
    "en": "english",
    "fr": "french",
    "de": "german",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "es": "spanish",
}


def is_dialect(name: str) -> bool:
    """Return whether an entry of `codec_language_id` is a dialect, which only speakers select.

    Source: qwen-tts 0.1.1, Qwen3TTSForConditionalGeneration.__init__, leaves exactly these out of
    its supported languages.
    """
    return "dialect" in name


def supported_languages(checkpoint_languages: Iterable[str]) -> list[str]:
    """Return what a request may name: "auto", then the checkpoint's languages without dialects."""
    return [AUTO, *sorted({name for name in checkpoint_languages if not is_dialect(name)} - {AUTO})]


def code_of_language(name: str) -> str | None:
    """Return the ISO 639 code of a language that the releases speak; None for any other string.

    Args:
        name: the checkpoint's name of the language, in any case ("Chinese").
    """
    wanted = name.strip().lower()
    return next((code for code, known in _NAME_OF_CODE.items() if known == wanted), None)


def language_of_code(code: str) -> str | None:
    """Return the name of the language of an ISO 639 code or BCP-47 tag; None if it is unknown."""
    return _NAME_OF_CODE.get(code.strip().lower().replace("_", "-").split("-")[0])


def resolve_language(language: str | None, checkpoint_languages: Iterable[str]) -> str:
    """Return the checkpoint's name for a language: "auto" or a key of `checkpoint_languages`.

    Args:
        language: a name in any case, an ISO 639 code ("en") or a BCP-47 tag ("en-US", "zh_CN"),
            whose first subtag is used; None means "auto", as in the official wrapper.
        checkpoint_languages: `TalkerConfig.languages`.
    Raises:
        UnknownLanguage: the checkpoint has no such language, or it is a dialect.
    """
    if language is None:
        return AUTO
    supported = supported_languages(checkpoint_languages)
    wanted = language.strip().lower()
    name = next((name for name in supported if name.lower() == wanted), None)
    if name is None:
        name = language_of_code(wanted)
    if name in supported:
        return name
    codes = {name: code for code, name in reversed(_NAME_OF_CODE.items())}
    known = [f"{name} ({codes[name]})" if name in codes else name for name in supported]
    raise UnknownLanguage(
        f'Unknown language "{printable(language)}". Known: {", ".join(known)}.',
        "A dialect cannot be chosen as a language; it comes with its speaker."
        if is_dialect(wanted)
        else "",
        did_you_mean(wanted, supported),
    )
