"""What became of a checkpoint: two targets of any formats, side by side. `run.diff` is the way in."""
