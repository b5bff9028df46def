"""Words that are never key words by themselves, of the commoner European languages: `stopwords.txt`."""

from pathlib import Path

_lines = Path(__file__).with_name("stopwords.txt").read_text(encoding="utf-8").splitlines()
STOPWORDS = frozenset(word for line in _lines if not line.startswith("#") for word in line.split())
