"""Masking secrets in texts about errors, at the moment they are written: rows, events, logs, dead letters, answers.

A secret is a text of a well-known form (quotas.secret_forms), a value that is named as one (`api_key=…`,
`"password": "…"`), or a value this process was configured with. What is masked stays as it is when masked again.
Inputs, outputs and events of agents are payload and do not come here.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from quotas.secret_forms import FORMS, MARK, QUOTE, SHORTEST, is_odd

DEPTH_MAX = 64
EXACT_MIN = 8  # a shorter value is a part of too many words
# Passwords that are words of every log: masking them would garble the logs and tell the password.
WORDS = frozenset({"agentops", "embedded", "postgres", "postgresql", "password", "localhost", "changeme"})
SECRET_VARIABLE = re.compile(r"(?:key|token|secret|password|passwd|passphrase|credentials?|dsn)$", re.IGNORECASE)


class _Known:
    """What `configure` told: exact values, longest first, and an operator's own patterns."""

    values: tuple[str, ...] = ()
    patterns: "tuple[re.Pattern[str], ...]" = ()


# What stands where a secret would be and is none: an absence, a type, a placeholder, what was masked before.
_NOTHING = re.compile(
    r"none|null|nil|true|false|undefined|empty|missing|required|invalid|expired|unknown|wrong|denied|failed"
    r"|redacted|str|int|bytes|bool|any|string|object|secretstr|bearer|basic|digest|negotiate"
    r"|\[key\]|[*.…x_-]*|(?:\w{1,16}[-_. ]){0,3}\[masked\]",
    re.IGNORECASE,
)
_NUMBER_OR_ID = re.compile(
    r"[-+]?\d{1,8}(?:\.\d{0,8})?[a-z%]{0,3}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)
_CODE_NAME = re.compile(r"[a-z_]{1,19}|[A-Z_]{1,19}")
_END_OF_CLAUSE = re.compile(r"[.,;)\]}]{0,3}[ \t]*(?:$|[\r\n\"'|]|\\n)")


def _fits(pattern: "re.Pattern[str]", value: str) -> bool:
    """Whether a short value is of the pattern; a long one never is."""
    return len(value) <= 60 and pattern.fullmatch(value) is not None


# -- a name and its value ---------------------------------------------------------------------------
# A name ends with one of these words, whatever is before it: OPENAI_API_KEY, dbPassword, x-access-token.
# Lower case, and every branch begins with a letter: the engine then skips at once to the few places that count.
_WORD = re.compile(
    r"pass(?:word|wd|phrase|code)|secret|credentials?|key|token|auth(?:orization)?|pwd(?!=/)|pass|sig(?:nature)?|jwt"
    r"|sessionid|ticket"
)
_AFTER_WORD = re.compile(r"\d{0,2}(?: provided)?(?![a-z0-9_])")
_BEFORE_KEY = re.compile(
    r"(?:api|access|secret|private|signing|encryption|auth|account|shared|subscription|license|master)[ _-]?\Z"
)
STRONG, WEAK, BARE = "strong", "weak", "bare"  # how much a name says about its value
_SEPARATOR = re.compile(
    rf"(?:{QUOTE})?[ \t]{{0,8}}(?P<sign>:=|=>|=(?!=)|%3[Dd]|:(?!:|//))[ \t]{{0,8}}"
    rf"|{QUOTE}[ \t]{{0,8}}(?P<pair>,)[ \t]{{0,8}}(?=b?{QUOTE})"  # ("x-api-key", "…"), (b"x-api-key", b"…")
)
# Code that fetches a secret shows none, and neither does a placeholder: a traceback is full of both.
_SHOWS_NONE = re.compile(
    r"(?:self|cls|os|env|environ|settings|config|kwargs|args|request|response|ctx|context|options|headers|secrets"
    r"|getpass|params)[.\[(]|<[\w .-]{1,40}>|\{[\w.!:\[\]]{0,40}\}|\$\{|\$[A-Z_]{2,40}(?![a-z0-9])|%\(|%[srd](?!\w)"
    r"|(?:Optional|Union|Annotated|Literal|SecretStr)[\[(]|\w{1,40}\(\)|(?:[a-z_]{1,40}\.){1,5}[a-z_]{1,40}\("
)
_OPEN = re.compile(r"[bBrRuUfF]{0,2}(?P<escape>\\{0,4})(?P<quote>[\"'])")
# To the closing quote; where that was cut off, to the end of the line. By (quote, whether it is escaped itself).
_QUOTED = {
    ('"', False): re.compile(r'(?:[^"\\\r\n]++|\\.)*+'),
    ("'", False): re.compile(r"(?:[^'\\\r\n]++|\\.)*+"),
    ('"', True): re.compile(r'(?:[^"\\\r\n]++|\\(?!\\{0,4}"))*+'),
    ("'", True): re.compile(r"(?:[^'\\\r\n]++|\\(?!\\{0,4}'))*+"),
}
_PLAIN = re.compile(r"(?:[^\s\"'&;<\\]++|\\(?![nrt\"'])|<(?![/A-Za-z])|[\"'](?=\w))++")
_SMALL = {capital: capital + 32 for capital in range(ord("A"), ord("Z") + 1)}
_ENDS = ".,:;!?)]}>`"


def _kind(low: str, word: "re.Match[str]") -> str:
    """Return how much the name says that ends with the word; "" if it says nothing."""
    name, start = word[0], word.start()
    before = low[start - 1] if start else ""
    if name == "key":
        if _BEFORE_KEY.search(low, max(0, start - 13), start) is not None:
            return STRONG
        return "" if before.isalpha() or before in {"_", "-"} else BARE  # any key: its value decides
    if name in {"secret", "credential", "credentials"} or (name != "pass" and name.startswith("pass")):
        return STRONG
    return WEAK if name == "token" or not before.isalpha() else ""


def _value_after(text: str, at: int) -> tuple[int, int, bool]:
    """Return where the value at `at` begins and ends, and whether it is quoted."""
    opened = _OPEN.match(text, at)
    if opened is None:
        found = _PLAIN.match(text, at)
        value = "" if found is None else found[0].rstrip(_ENDS)
        end = at + len(value)
        return at, end + 1 if value.endswith(MARK[:-1]) and text.startswith("]", end) else end, False
    closing = _QUOTED[opened["quote"], opened["escape"] != ""]
    found = closing.match(text, opened.end())
    return opened.end(), opened.end() if found is None else found.end(), True


def _hides(kind: str, sign: str, value: str, *, quoted: bool, last: bool) -> bool:
    """Decide whether a named value is a secret. `last`: nothing follows in its line, as nothing follows a value.

    A long value always is one: whatever is left as it is, is short, and searched again for names of its own.
    """
    if not value or _fits(_NOTHING, value) or (kind != STRONG and _fits(_NUMBER_OR_ID, value)):
        return False
    odd = is_odd(value)
    if sign == ",":  # or a list of names
        return len(value) >= SHORTEST and odd and not _fits(_CODE_NAME, value)
    if kind == STRONG:
        return quoted or sign != ":" or (len(value) >= 4 and (odd or last))
    if kind == BARE:
        return _is_telling_by_itself(value, odd=odd)
    if quoted:
        return len(value) >= (SHORTEST if odd else 10)
    return len(value) >= 3 if sign != ":" else len(value) >= SHORTEST and odd


def _is_telling_by_itself(value: str, *, odd: bool) -> bool:
    """Whether the value of a `key=` is a secret, not the name of a field or a key of Redis."""
    if ":" in value and len(value) < 60:
        return False
    if _fits(_CODE_NAME, value):
        return len(value) >= 12 and "_" not in value
    return len(value) >= SHORTEST and odd


def _mask_named(text: str) -> str:
    low = _lower(text)
    parts, kept, at = [], 0, 0
    while (word := _WORD.search(low, at)) is not None:
        at = word.end()
        after = _AFTER_WORD.match(low, at)
        kind = _kind(low, word) if after is not None else ""
        separator = _SEPARATOR.match(text, after.end()) if after is not None and kind else None
        if separator is None or _SHOWS_NONE.match(text, separator.end()):
            continue
        sign = separator["sign"] or separator["pair"]
        if kind == BARE and sign in {":", ","}:
            continue
        start, end, quoted = _value_after(text, separator.end())
        last = _END_OF_CLAUSE.match(text, end) is not None
        if _hides(kind, sign, text[start:end], quoted=quoted, last=last):
            parts += [text[kept:start], MARK]
            kept = at = end
    return "".join([*parts, text[kept:]])


def _lower(text: str) -> str:
    """Return the text with small letters, each where it was: a few capitals become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.translate(_SMALL)


# -- what others call -------------------------------------------------------------------------------
def mask(text: str) -> str:
    """Return the text with every secret replaced by `[masked]`; what tells its kind stays (`sk-[masked]`)."""
    if len(text) < SHORTEST:
        return text
    for value in _Known.values:
        text = text.replace(value, MARK)
    low = text.lower()
    for form in FORMS:
        if any(hint in low for hint in form.hints):
            text = form.pattern.sub(form.replace, text)
    text = _mask_named(text)
    for pattern in _Known.patterns:
        text = pattern.sub(lambda found: MARK if found[0] else "", text)
    return text


def mask_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON-like value with masked texts. A member whose name says secret loses its value as a whole.

    Anything else than JSON is kept, unless its text holds a secret: then the masked text takes its place.
    """
    if depth > DEPTH_MAX:
        return "…"
    match value:
        case str():
            return mask(value)
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {_masked_key(name): mask_member(name, item, depth + 1) for name, item in value.items()}
        case list() | tuple():
            return [mask_json(item, depth + 1) for item in value]
        case _:
            return _masked_object(value)


def mask_member(name: Any, value: Any, depth: int = 0) -> Any:
    """Return the value of an object's member, masked by what it is and by its name."""
    kind = _kind_of_name(name) if isinstance(name, str) else ""
    if kind in {"", BARE} or depth > DEPTH_MAX:
        return mask_json(value, depth)
    match value:
        case list() | tuple():
            return [mask_member(name, item, depth + 1) for item in value]
        case str() | bytes() | int() | float() if not isinstance(value, bool):
            text = mask(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
            quoted = isinstance(value, str | bytes) or kind == STRONG
            return MARK if quoted and _hides(kind, "=", text, quoted=True, last=True) else mask_json(value, depth)
        case _:
            return mask_json(value, depth)


def _kind_of_name(name: str) -> str:
    low = _lower(name)
    for word in _WORD.finditer(low):
        after = _AFTER_WORD.match(low, word.end())
        if after is not None and after.end() == len(low):
            return _kind(low, word)
    return ""


def _masked_key(name: Any) -> Any:
    return mask(name) if isinstance(name, str) else name


def _masked_object(value: Any) -> Any:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a broken __repr__ must not lose the line it stands in
        return f"({type(value).__name__} cannot be shown)"
    masked = mask(text)
    return value if masked == text else masked


def configure(secrets: Iterable[str | None], environ: Mapping[str, str], patterns: Iterable[str] = ()) -> None:
    """Tell what this process knows: secrets of the settings, its environment, an operator's own expressions.

    Of the environment those variables count whose names say secret (`…_KEY`, `…_TOKEN`, `…PASSWORD`), and the passwords
    of addresses. Raises ImproperlyConfigured for an expression that is none.
    """
    named = [value for name, value in environ.items() if SECRET_VARIABLE.search(name)]
    addresses = [password_of(value) for value in environ.values()]
    values = {value.strip() for value in [*secrets, *named, *addresses] if value is not None and _is_telling(value)}
    forms = {form for value in values for form in (value, quote(value, safe=""), repr(value)[1:-1])}
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise ImproperlyConfigured(f"AGENTOPS_MASK: {pattern!r} is no regular expression: {error}.") from None
    _Known.values = tuple(sorted(forms, key=len, reverse=True))
    _Known.patterns = tuple(compiled)


def password_of(url: str) -> str | None:
    """Return the password of an address, None where there is none or the text is no address."""
    if "://" not in url or "@" not in url:
        return None
    try:
        password = urlsplit(url).password
    except ValueError:
        return None
    return None if password is None else unquote(password)


def _is_telling(value: str) -> bool:
    """Whether a value is found only where it is meant: not short, no number, no file, no word of every log."""
    value = value.strip()
    plain = value.isdigit() or value.lower() in WORDS
    return len(value) >= EXACT_MIN and not plain and not os.path.exists(value)
