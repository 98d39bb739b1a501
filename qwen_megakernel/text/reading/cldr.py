"""Currencies of other countries, from the Unicode CLDR, which has their names in every language."""

# Signs and codes of currencies, each with its code. A code that is an English word is left out.
_SIGNS = """HK$ HKD; NT$ TWD; S$ SGD; A$ AUD; C$ CAD; NZ$ NZD; MX$ MXN; R$ BRL; US$ USD; ₱ PHP
        ₺ TRY
    ₴ UAH; ₫ VND; ₦ NGN; ₪ ILS; ฿ THB; ₡ CRC; ₲ PYG; ₸ KZT; ₵ GHS; zł PLN; Kč CZK; kr SEK; Ft HUF
    ₹ INR; Rs. INR; Rs INR; Rp IDR; RM MYR; ₩ KRW; ₽ RUB; € EUR; £ GBP; $ USD; ¥ JPY; SEK SEK
    NOK NOK; DKK DKK; PLN PLN; CZK CZK; HUF HUF; CHF CHF; AUD AUD; CAD CAD; NZD NZD; SGD SGD
    HKD HKD; TWD TWD; INR INR; CNY CNY; JPY JPY; KRW KRW; BRL BRL; MXN MXN; ZAR ZAR; ILS ILS
    THB THB; PHP PHP; IDR IDR; MYR MYR; VND VND; AED AED; SAR SAR; RUB RUB; UAH UAH; GBP GBP
    EUR EUR; USD USD"""
_FEMININE = (
    "couronne",
    "livre",
    "roupie",
    "hryvnia",
)  # French nouns, whose ending does not show it


def currency_forms(language: str) -> dict[str, tuple[str, str, str, bool]]:
    """Return for each sign the currency's names after 1, 2 and 5, and whether they are feminine."""
    from babel.numbers import get_currency_name

    found = {}
    for entry in _SIGNS.replace("\n", ";").split(";"):
        sign, code = entry.split()
        one, few, many = (get_currency_name(code, count, language) for count in (1, 2, 5))
        if language == "pt":  # whose names begin with a capital
            one, few, many = (name[0].lower() + name[1:] for name in (one, few, many))
        head = one.split()[-1 if language in ("de", "ru") else 0]
        endings = {"de": ("e", "Lira"), "ru": ("а", "я"), "fr": _FEMININE}.get(language, ("a",))
        found[sign] = one, few, many, head.endswith(endings)
    return found
