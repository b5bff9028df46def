"""The digest as a markdown page."""

from collections.abc import Iterator
from typing import Any


def as_markdown(name: str, result: dict[str, Any]) -> str:
    """Return the page: summary, key words, key sentences, then chapter by chapter."""
    return "\n".join(_lines(name, result)) + "\n"


def _lines(name: str, result: dict[str, Any]) -> Iterator[str]:
    yield f"# Digest of {name}\n"
    yield f"{result['summary']}\n"
    if result["key_words"]:
        yield f"**Key words:** {', '.join(result['key_words'])}\n"
    yield "## Key sentences\n"
    yield from (f"- {sentence}" for sentence in result["key_sentences"])
    for chapter in result["chapters"]:
        yield f"\n## {chapter['title']}\n"
        yield f"{chapter['summary']}\n"
        if chapter["key_words"]:
            yield f"*{', '.join(chapter['key_words'])}*\n"
        for pair in chapter["questions"]:
            yield f"**{pair['question']}** {pair['answer']}\n"
    pages = "" if result["pages"] is None else f"{result['pages']} pages, "
    yield f"\n---\n{pages}{result['chunks']} chunks"
