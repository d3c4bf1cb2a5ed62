"""The rules, one file per family. `rule.py` holds the registry."""
