"""Every page with a million runs: `make scale` fills a PostgreSQL of its own, opens them, and looks at their SQL."""
