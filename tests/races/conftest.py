"""Which of the races are for one database only: they are not collected on the others."""

from django.db import connection

# The proxy speaks PostgreSQL's protocol.
collect_ignore = [] if connection.vendor == "postgresql" else ["test_lost_answers.py"]
