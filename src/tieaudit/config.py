"""This file holds config.json as it is read here: a JSON object with a few questions to it. Nothing in it is trusted or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checkpoint import Problem
from .errors import FormatError, ReadError, TargetError
from .loaders.safetensors import JSON_TYPES
from .loaders.sharded import read_json
from .sources import Folder

MAX_CONFIG = 16 << 20  # bytes; the largest real ones (long label maps) have some 2 MB
FILES = ("config.json", "params.json")  # params.json: the original LLaMA and Mistral releases
ABSENT = object()
"""What `Config.at` gives for a key that is not there; None stands for a JSON null."""


@dataclass(frozen=True, slots=True)
class Config:
    """The object of `file`, and nothing else."""

    file: str
    data: Mapping[str, Any]

    def at(self, path: str) -> Any:
        """The value at a dotted path, ABSENT if any step is missing."""
        value: Any = self.data
        for step in path.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return ABSENT
            value = value[step]
        return value

    @property
    def architectures(self) -> tuple[str, ...]:
        names = self.data.get("architectures")
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()

    @property
    def model_type(self) -> str:
        name = self.data.get("model_type")
        return name if isinstance(name, str) else ""

    @property
    def dtype(self) -> str:
        """`dtype` (transformers 5) or `torch_dtype` (4), without `torch.`; "" if neither is there."""
        for key in ("dtype", "torch_dtype"):
            value = self.data.get(key)
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return ""

    @property
    def remote_code(self) -> bool:
        return isinstance(self.data.get("auto_map"), Mapping)

    @property
    def writer(self) -> int | None:
        """Major version of the transformers that wrote the file; None if it does not say."""
        version = self.data.get("transformers_version")
        major = version.split(".", 1)[0] if isinstance(version, str) else ""
        return int(major) if major.isdecimal() and len(major) < 4 else None


def read(folder: Folder) -> tuple[Config | None, Problem | None]:
    """The config beside the weights, if any, and what is wrong with it, if anything. TargetError if a server does not give it: without
    its claim everything would be judged by names, and wrongly."""
    for name in FILES:
        if not folder.exists(name):
            continue
        try:
            data = read_json(folder, name, MAX_CONFIG)
        except ReadError as error:
            raise TargetError(name, error.what, "without it nothing can be judged; try again, or raise --timeout") from None
        except FormatError as error:
            return None, Problem(file=name, what=error.what, offset=error.offset)
        if not isinstance(data, dict):
            return None, Problem(file=name, what=f"is {JSON_TYPES[type(data)]}, not a JSON object", offset=0)
        return Config(name, data), None
    return None, None
