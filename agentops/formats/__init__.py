"""How Django writes values, by language (FORMAT_MODULE_PATH)."""
