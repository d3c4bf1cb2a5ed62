"""The only package that imports torch and transformers: what a model in memory shares. `module.py` holds what is public."""
