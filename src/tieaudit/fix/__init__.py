"""The repairs: `plan.py` decides (nothing is written), `apply.py` writes new files beside the old ones and puts them in place.

    case ─▶ steps/*.py ─▶ Draft ─▶ outputs.py ─▶ Plan ─▶ apply.py ─▶ writers/*.py ─▶ a folder of its own ─▶ audit ─▶ rename

To add a repair: a function in `steps/` that takes the draft. To add a format: a Writer in `writers/`.
"""
