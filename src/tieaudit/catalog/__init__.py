"""What each architecture of transformers shares, observed by `generate.py` and kept in `architectures.json.gz`."""
