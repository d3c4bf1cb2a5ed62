"""This file holds the exception tree.

    TieauditError
    ├── FormatError    a file breaks its own format: becomes finding TIE501, exit 1
    │   ├── UnknownFormat  the first bytes are those of no format that is read here
    │   └── ReadError      the way to the bytes failed, not the file: something asked for was not checked, exit 2
    ├── TargetError    there is nothing that can be audited: one line, exit 2
    │   └── MissingLibrary  something public needs a package that is not installed; an ImportError too
    ├── OptionError    an option has a value that nothing answers to: one line, exit 2
    ├── SettingsError  a file of settings or accepted findings cannot be taken as it is: one line, exit 2
    └── BrokenTie      `assert_tied`: names in memory are not one Parameter; an AssertionError too

The arguments are data and the message is derived from them: what is wrong, where, what to do.
"""

from __future__ import annotations


class TieauditError(Exception):
    """Anything that the tool says no to."""


class FormatError(TieauditError):
    """A file (or a part of it) breaks its own format.

    `what` is a clause without the file name; `offset` is the byte of the file where it shows, if one can be named.
    """

    def __init__(self, file: str, what: str, offset: int | None = None) -> None:
        super().__init__(file, what, offset)
        self.file = file
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        place = "" if self.offset is None else f" (at byte {self.offset:,})"
        return f"{self.file}: {self.what}{place}"


class UnknownFormat(FormatError):
    """The file is of another kind; a fault only if its name promised a checkpoint."""


class ReadError(FormatError):
    """A server did not give the bytes. That says nothing about the file, so it never becomes a finding."""


class TargetError(TieauditError):
    """The target cannot be audited; `advice` says what the user can do about it."""

    def __init__(self, target: str, what: str, advice: str = "") -> None:
        super().__init__(target, what, advice)
        self.target = target
        self.what = what
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.target}: {self.what}" + (f" ({self.advice})" if self.advice else "")


class MissingLibrary(TargetError, ImportError):
    """What was asked for from Python stands on a package that is not installed."""


class OptionError(TieauditError):
    """An option's value is not one that exists."""

    def __init__(self, option: str, value: str, advice: str) -> None:
        super().__init__(option, value, advice)
        self.option = option
        self.value = value
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.option}: {self.value!r} is not known ({self.advice})"


class SettingsError(TieauditError):
    """A file that the user keeps beside the models says something that is not understood. `where` is the key, "" for the whole file."""

    def __init__(self, file: str, where: str, what: str) -> None:
        super().__init__(file, where, what)
        self.file = file
        self.where = where
        self.what = what

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.what}" if self.where else f"{self.file}: {self.what}"


class BrokenTie(TieauditError, AssertionError):
    """Names of a model in memory that should be one Parameter are not; `messages` are sentences, one per tie."""

    def __init__(self, model: str, messages: tuple[str, ...]) -> None:
        super().__init__(model, messages)
        self.model = model
        self.messages = messages

    def __str__(self) -> str:
        return f"{self.model}: " + "; ".join(self.messages)
