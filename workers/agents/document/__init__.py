"""`document.digest`: a document's summary, key words, key sentences, and questions with answers."""

from workers.agents.document.digest import digest

__all__ = ["digest"]
