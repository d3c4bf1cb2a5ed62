"""The repairs, a file per family; each takes the draft of a plan and adds what it decides."""
