"""AgentOps: LLM-agent runs as a durable service. The version lives here."""

__version__ = "0.1.0"
