"""This file holds silence while torch and transformers are imported: what they say of optional parts is about the machine. No torch."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """No warnings of any library, neither as such nor as log lines. For the whole process, while it lasts."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
