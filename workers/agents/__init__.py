"""The agents that ship with AgentOps. Importing this package registers them."""

from workers.agents import assistant, bench, document

__all__ = ["assistant", "bench", "document"]
