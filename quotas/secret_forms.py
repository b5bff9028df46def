"""The well-known forms of secrets: a bearer token, `sk-…`, a JWT, a private key, `user:password@` in an address.

The texts come from strangers, so the time grows with their length and with nothing else: every repetition is bounded
or possessive, and no search begins again inside what another one has read. The same holds in quotas.masking.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

MARK = "[masked]"
SHORTEST = 6  # letters of a secret that nothing names
_ODD = re.compile(r"[^A-Za-z.,!?:;'-]|[a-z][A-Z]")  # a digit, a sign or a capital inside: no word of a sentence


@dataclass(frozen=True, slots=True)
class Form:
    """One form. It is searched only where the lower-cased text holds one of its hints: most texts hold none."""

    hints: tuple[str, ...]
    pattern: "re.Pattern[str]"
    replace: "str | Callable[[re.Match[str]], str]"


def is_odd(value: str) -> bool:
    """Whether it is no word of a sentence: it has a digit, a sign, a capital inside, or more letters than words."""
    return len(value) >= 20 or _ODD.search(value) is not None


# What follows "Bearer" in a sentence, and in the WWW-Authenticate header.
_NOT_WORDS = (
    r"(?!(?:tokens?|auth(?:entication|orization|enticated|orized)?|scheme|header|credentials?|keys?|is|was|or|and|not)(?![\w~+/=-]|\.\w)"
    r"|(?:realm|error|scope)=)"
)
_NOT_PLACEHOLDER = r"(?![<{$%*\[`])"
QUOTE = r"""\\{0,4}["']"""  # escaped or not
_SCHEMES = r"(?:bearer|basic|token|apikey|api-key|key|negotiate|ntlm)"
_LISTS = r"(?:digest|aws4-hmac-sha256|oauth|signature|hawk)"  # schemes whose credentials are a list
_TO_END = r"(?:[^\"'\\\r\n]++|\\(?![nr\"']))++"  # to the closing quote or the end of the line
_HEADER = rf"(?:{QUOTE})?[ \t]{{0,4}}[:=,][ \t]{{0,4}}(?:b?{QUOTE})?"


def _i(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern, re.IGNORECASE)


def _bearer(found: "re.Match[str]") -> str:
    value = found["value"]
    in_prose = found["word"] != "Bearer" and not is_odd(value) and "." not in value[:-1]
    return found[0] if in_prose or len(value) < SHORTEST else f"{found['word']}{found['gap']}{MARK}"


def _sk(found: "re.Match[str]") -> str:
    """Mask `sk-…` unless it is a hyphenated word, such as the name of a package."""
    value = found["value"]
    secret = is_odd(value) or (len(value) >= 10 and "-" not in value)
    return f"sk-{MARK}" if secret else found[0]


_VENDORS = (
    r"gh[oprsu]_(?=[A-Za-z0-9]{10})|github_pat_|glpat-|xox[a-z]-(?=[\w-]{8})|xapp-(?=\d-)|hf_(?=[A-Za-z0-9]{20})"
    r"|gsk_(?=[A-Za-z0-9]{20})|xai-(?=[A-Za-z0-9]{20})|pplx-(?=[A-Za-z0-9]{20})|r8_(?=[A-Za-z0-9]{20})"
    r"|npm_(?=[A-Za-z0-9]{30})|pypi-(?=AgE)|[sr]k_(?:live|test)_|whsec_|AIza(?=[\w-]{30})|ya29\.|SG\.(?=[\w-]{10})"
    r"|lsv2_(?:pt|sk)_|nvapi-(?=[\w-]{20})|tvly-(?=[\w-]{20})|hooks\.slack\.com/services/|bot(?=\d{6,12}:[\w-]{20})"
)
_VENDOR_HINTS = (
    "ghp_ gho_ ghr_ ghs_ ghu_ github_pat_ glpat- xox xapp- hf_ gsk_ xai- pplx- r8_ npm_ pypi-ag k_live_ k_test_ whsec_"
    " aiza ya29. sg. lsv2_ nvapi- tvly- hooks.slack bot"
)
FORMS: tuple[Form, ...] = (
    Form(
        ("private key",),
        re.compile(
            r"(?P<head>-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----)"
            r"(?=(?:[\s|>\"'+,]|\\[rn])*+(?:[A-Za-z0-9+/]{16}|Proc-Type|DEK-Info|Version|Comment))"
            r"[^-]*+(?:-(?!----END)[^-]*+)*+(?:-----END[A-Z0-9 ]{1,60}-----)?"
        ),
        rf"\g<head>{MARK}",
    ),
    Form(
        ("authorization",),
        _i(
            rf"(?P<head>authorization{_HEADER}(?:{_SCHEMES}[ \t]{{1,4}}))"
            rf"{_NOT_WORDS}{_NOT_PLACEHOLDER}[^\s\"'\\,;]++"
        ),
        rf"\g<head>{MARK}",
    ),
    Form(
        ("authorization",),
        _i(rf"(?P<head>authorization{_HEADER}{_LISTS}[ \t]{{1,4}})(?=[\w-]{{1,40}}=)[^\r\n]++"),
        rf"\g<head>{MARK}",
    ),
    Form(("cookie",), _i(rf"(?P<head>cookie{_HEADER})(?=[\w.-]{{1,80}}=){_TO_END}"), rf"\g<head>{MARK}"),
    Form(
        ("bearer",),
        _i(
            rf"(?<!\w)(?P<word>bearer)(?P<gap>[ \t]{{1,8}}|:[ \t]{{0,8}}|%20|\+){_NOT_WORDS}{_NOT_PLACEHOLDER}"
            r"(?P<value>[A-Za-z0-9._~+/=|:-]++)"
        ),
        _bearer,
    ),
    # The password of an address, which may hold an "@"; or a "/", where it cannot be a port.
    Form(
        ("://",),
        re.compile(
            r"://(?P<user>[^\s/?#:@\"'<>]{0,256}+):(?!\[masked\]@)"
            r"(?:(?:[^\s/?#@\"'<>]*+@)++|(?!\d{1,5}(?![^\s/?#]))[^\s@:\"'<>]{1,256}+@)"
        ),
        rf"://\g<user>:{MARK}@",
    ),
    Form(("://",), re.compile(r"://[^\s/?#:@.\"'<>]{20,256}+@"), f"://{MARK}@"),
    Form(("ao_",), re.compile(r"(?<![A-Za-z0-9])(?P<head>ao_[0-9a-z]{4,20}_)[\w-]{8,}+"), rf"\g<head>{MARK}"),
    Form(("sk-",), re.compile(r"(?<![A-Za-z0-9])sk-(?P<value>[A-Za-z0-9_*.-]{6,}+)"), _sk),
    Form(
        tuple(_VENDOR_HINTS.split()),
        re.compile(rf"(?<![A-Za-z0-9])(?P<head>{_VENDORS})[\w.:/-]{{6,}}+"),
        rf"\g<head>{MARK}",
    ),
    Form(
        ("akia", "asia", "abia", "acca"),
        re.compile(r"(?<![A-Za-z0-9])(?P<head>A(?:KIA|SIA|BIA|CCA))[A-Z0-9]{12,40}(?![A-Za-z0-9])"),
        rf"\g<head>{MARK}",
    ),
    Form(("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{6,}+\.[\w-]{2,}+(?:\.[\w-]*+)*+"), f"eyJ{MARK}"),
    Form(
        ("--",),
        _i(
            r"(?<![\w-])(?P<head>--[a-z0-9-]{0,30}(?:password|passwd|token|secret|api-?key)[ \t]{1,4})"
            rf"{_NOT_PLACEHOLDER}[^\s\"'-][^\s\"']*+"
        ),
        rf"\g<head>{MARK}",
    ),
)
