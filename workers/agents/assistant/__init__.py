"""`assistant.chat`: one streamed answer of a model."""

from workers.agents.assistant.chat import chat

__all__ = ["chat"]
