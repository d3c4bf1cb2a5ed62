"""tieaudit: what a model checkpoint really shares, against what its config claims.

`audit(target)` returns a Report; everything public is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import FormatError as FormatError
    from .errors import OptionError as OptionError
    from .errors import TargetError as TargetError
    from .errors import TieauditError as TieauditError
    from .report import Finding as Finding
    from .report import Report as Report
    from .report import Severity as Severity
    from .stages import audit as audit

__version__ = "0.1.0"
__all__ = ["Finding", "FormatError", "OptionError", "Report", "Severity", "TargetError", "TieauditError", "__version__", "audit"]

_HOMES = {"audit": "stages", "Finding": "report", "Report": "report", "Severity": "report", "FormatError": "errors",
          "OptionError": "errors", "TargetError": "errors", "TieauditError": "errors"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for and no more: `tieaudit -h` needs none of it."""
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module("." + _HOMES[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
