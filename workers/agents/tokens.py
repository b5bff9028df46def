"""How many tokens a text is, judged without the model's tokenizer: too many rather than too few."""

import re

LETTERS_PER_TOKEN = 3
OVERHEAD = 8  # role marks around a message

_words = re.compile(r"[A-Za-z ]+")


def tokens_of(text: str) -> int:
    """Return a careful count: three plain letters a token, a token for a digit or a sign, two for other scripts."""
    plain = sum(map(len, _words.findall(text)))
    rest = len(text) - plain
    foreign = 0 if text.isascii() else sum(character > "\x7f" for character in text)
    return plain // LETTERS_PER_TOKEN + rest + foreign + OVERHEAD
