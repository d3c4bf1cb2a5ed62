"""tieaudit: what a model checkpoint really shares, against what its config claims.

`audit(target)` returns a Report; everything public is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .changes.run import diff as diff
    from .difference import Diff as Diff
    from .errors import BrokenTie as BrokenTie
    from .errors import FormatError as FormatError
    from .errors import OptionError as OptionError
    from .errors import TargetError as TargetError
    from .errors import TieauditError as TieauditError
    from .fix.apply import apply_fix as apply_fix
    from .fix.plan import plan_fix as plan_fix
    from .live.lightning import LightningTieCallback as LightningTieCallback
    from .live.module import assert_tied as assert_tied
    from .live.module import audit_module as audit_module
    from .live.snapshot import Snapshot as Snapshot
    from .live.snapshot import compare as compare
    from .live.snapshot import snapshot as snapshot
    from .live.state import audit_state_dict as audit_state_dict
    from .live.trainer import TrainerTieCallback as TrainerTieCallback
    from .report import Finding as Finding
    from .report import Report as Report
    from .report import Severity as Severity
    from .stages import audit as audit

__version__ = "0.1.0"
__all__ = ["BrokenTie", "Diff", "Finding", "FormatError", "OptionError", "Report", "Severity", "Snapshot", "TargetError", "TieauditError",
           "__version__", "apply_fix", "assert_tied", "audit", "audit_module", "audit_state_dict", "compare", "diff", "plan_fix",
           "snapshot"]  # fmt: skip

_HOMES = {"apply_fix": "fix.apply", "plan_fix": "fix.plan", "audit": "stages", "Finding": "report", "Report": "report",
          "Severity": "report", "FormatError": "errors",
          "OptionError": "errors", "TargetError": "errors", "TieauditError": "errors", "BrokenTie": "errors",
          "assert_tied": "live.module", "audit_module": "live.module", "audit_state_dict": "live.state",
          "Snapshot": "live.snapshot", "compare": "live.snapshot", "snapshot": "live.snapshot",
          "diff": "changes.run", "Diff": "difference",
          # not in __all__: a star import would import transformers and Lightning
          "LightningTieCallback": "live.lightning", "TrainerTieCallback": "live.trainer"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for and no more: `tieaudit -h` needs none of it."""
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module("." + _HOMES[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
