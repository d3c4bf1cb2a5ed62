"""Reports as text. Each reporter turns a Report into one string; only `cli` prints it."""
