"""`manage.py bench`: what the running services do in a second, and what one run costs."""
