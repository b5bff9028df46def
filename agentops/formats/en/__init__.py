"""How Django writes values in English."""
