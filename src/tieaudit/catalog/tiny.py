"""This file holds tiny instances of transformers architectures, made from shrunk default configs.

Every fact in the catalog is read off such an instance, so nothing here says what an architecture does: the rules only
make a config small. They go by field name and are dropped group by group until the class can be built, because a few
architectures check one field against another. The same rules work under transformers 4.57 and 5.x.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from tieaudit.catalog import usable

Json = dict[str, Any]
Path = tuple[str, ...]

VOCAB = 131  # rows; a prime that no other tiny dimension has, so that a vocabulary is recognised by its row count
HIDDEN = 64
LAYERS = 3  # the least that tells "the same integer on both sides" from "any integer"
HEADS = 4
MAX_REAL = 240_000_000  # parameters; larger instances stay on the meta device

# Written by the library at save time or not a property of the architecture.
_DROPPED = {"transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "id2label", "label2id"}
_DROPPED |= {"_attn_implementation_autoset", "_commit_hash", "experts_implementation", "_attn_implementation_internal", "torchscript"}

# Group, pattern of the field name, new value. An integer is only ever made smaller. Order matters: first match wins.
_RULES: Sequence[tuple[str, str, int]] = (
    ("layers", r"num_kv_shared_layers", 0),  # the other layers must keep one of every kind
    ("layers", r"(num_)?(hidden_)?layers|n_layers?|depth|.*_(num_)?(hidden_)?layers|num_layers_.*|.*_depth", LAYERS),
    ("layers", r"num_self_attends_per_block", LAYERS),
    ("layers", r"num_(encoder|decoder|text|vision)?_?blocks|num_nextn_predict_layers|max_(encoder|decoder)_layers", LAYERS),
    ("vocab", r"(.*_)?vocab_size(_.*)?|tgt_vocab_size|entity_vocab_size|n_vocab|.*_group_vocab|ngram_vocab_size_base", VOCAB),
    ("experts", r"(num|n|moe_num|num_local|n_routed|num_routed|moe)_?(routed_|local_)?experts", 4),
    ("experts", r".*experts_per_tok(en)?|moe_top_?k|top_k_experts|router_top_k|moe_k|num_selected_experts|num_experts_per_tok", 2),
    ("experts", r"n_group|topk_group|num_expert_group(s)?", 1),
    ("rank", r".*_lora_rank|.*_rank|o_groups", 16),
    ("headdim", r"qk_rope_head_dim|index_head_dim", 8),
    ("headdim", r"(.*_)?head_dim|(.*_)?headdim|d_kv|d_head|kv_channels|attention_head_(dim|size)|qk_nope_head_dim", 16),
    ("heads", r"num_key_value_heads|n_head_kv|num_kv_heads|(.*_)num_key_value_heads|num_attention_groups", 2),
    ("heads", r"(.*_)?(num|n)_(attention_)?heads?|(.*_)?attention_heads|n_heads?|num_heads|nhead", HEADS),
    ("ffn", r"(.*_)?intermediate_(size|dim)|(.*_)?ffn_(dim|size|hidden_size)|d_ff|n_inner|d_inner|mlp_dim|ffn_hidden", 96),
    ("ffn", r"(.*_)?(mlp|feedforward|feed_forward|ff)_(dim|size|hidden_size|hidden_dim)|dim_feedforward|ffn_dim", 96),
    ("hidden", r"(.*_)?hidden_(size|dim)|(.*_)?d_model|n_embd|n_embed|dim|(.*_)?embed_dim|(.*_)?embedding_(size|dim)", HIDDEN),
    ("hidden", r"emb_dim|out_hidden_size|(.*_)?projection_(dim|size)|word_embed_proj_dim|(.*_)?embed(ding)?_size", HIDDEN),
    ("hidden", r"(.*_)?lru_width|cross_attention_dim|(.*_)?hidden_channels|d_embed|proj_codevector_dim|output_dim|d_latents", HIDDEN),
    (
        "hidden",
        r"codebook_dim|vector_quantization_hidden_dimension|upsample_groups|input_size|adapter_(in|out)_dim|adapter_(in|out)put_size|.*_hidden_size_global",
        HIDDEN,
    ),
    ("hidden", r"base_channels|decoder_channels", 32),
    ("hidden", r"(n|num)_filters", 8),
    ("positions", r"(.*_)?max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|max_seq_len|.*max_length", 128),
    ("positions", r"codebook_size|num_codevectors_per_group|.*_num_embeddings|(.*_)?num_embeddings", 64),
)
_COMPILED = tuple((group, re.compile(pattern), value) for group, pattern, value in _RULES)
_SPLIT = (("expand", "num_heads", "head_dim"), ("mamba_expand", "mamba_n_heads", "mamba_d_head"))
_TOKEN = re.compile(r".*(_token_id|_token_index|_token_ids|_id|_idx|_token)$")

# Each fallback drops more groups of rules; the last ones keep only what a file name cannot show.
_FALLBACKS: Sequence[frozenset[str]] = (
    frozenset(),
    frozenset({"heads", "headdim"}),
    frozenset({"ffn", "positions", "rank"}),
    frozenset({"heads", "headdim", "hidden", "rank"}),
    frozenset({"layers"}),
    frozenset({"vocab", "tokens"}),
    frozenset({"heads", "headdim", "hidden", "ffn", "positions", "rank", "experts"}),
    frozenset({"heads", "headdim", "hidden", "ffn", "positions", "rank", "experts", "layers"}),
    frozenset({"heads", "headdim", "hidden", "ffn", "positions", "rank", "experts", "layers", "vocab", "tokens"}),
)


class NotBuilt(Exception):
    """No config of this class could be turned into a model; the argument says why."""


class _Tower(PreTrainedModel):  # type: ignore[misc]  # transformers is not typed here
    """Stands in for a vision tower of timm, which has no text weights, where timm is not installed."""

    config_class = transformers.PretrainedConfig
    main_input_name = "pixel_values"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.projection = torch.nn.Linear(2, 2)
        self.num_features = 64
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        pass


def _stand_in() -> None:
    if importlib.util.find_spec("timm") is None:
        for name in ("TimmWrapperConfig", "Gemma3nVisionConfig"):
            config_class = getattr(transformers, name, None)
            if config_class is not None:
                tower: Any = type(_Tower.__name__, (_Tower,), {"config_class": config_class})
                transformers.AutoModel.register(config_class, tower, exist_ok=True)
                transformers.AutoModelForImageClassification.register(config_class, tower, exist_ok=True)


def architectures() -> dict[str, type[PreTrainedModel]]:
    """Return every concrete model class that transformers exports or names in an auto mapping, by name, sorted."""
    _stand_in()
    found: dict[str, type[PreTrainedModel]] = {}
    for name in {*dir(transformers), *_mapped_names()}:
        value: Any = _exported(name)
        concrete = isinstance(value, type) and issubclass(value, PreTrainedModel) and not re.search(r"Pre[Tt]rained\w*Model", name)
        if concrete and getattr(value, "config_class", None) is not None:
            found[name] = value
    return dict(sorted(found.items()))


def _exported(name: str) -> Any:
    try:
        return getattr(transformers, name, None)
    except (ImportError, RuntimeError):  # a processor that needs a library that is not there
        return None


def unresolved() -> list[str]:
    """Return the class names in auto mappings that transformers does not export."""
    return sorted(name for name in _mapped_names() if _exported(name) is None)


def _mapped_names() -> Iterator[str]:
    for attribute in dir(modeling_auto):
        if attribute.startswith("MODEL_") and attribute.endswith("_MAPPING_NAMES"):
            for value in getattr(modeling_auto, attribute).values():
                yield from (name for name in (value if isinstance(value, (list, tuple)) else (value,)) if name)


def default_config(cls: type[PreTrainedModel]) -> Json:
    """Return the full default config.json of a class, as plain JSON values."""
    config_class: Any = cls.config_class
    required = usable.REQUIRED.get(config_class.model_type)
    config = config_class.from_dict(copy.deepcopy(dict(required))) if required else config_class()
    plain = _without_dropped(json.loads(json.dumps(config.to_dict(), default=str)))
    return _merged(_usable(plain), usable.OF_CLASS.get(cls.__name__, {}))


def tiny_configs(cls: type[PreTrainedModel]) -> Iterator[Json]:
    """Yield smaller and smaller changes of the default config, the smallest instance first."""
    full = default_config(cls)
    seen: list[Json] = []
    for dropped in _FALLBACKS:
        config = shrink(full, dropped)
        if config not in seen:
            seen.append(config)
            yield config


def shrink(config: Json, dropped: frozenset[str] = frozenset()) -> Json:
    """Return a copy of a config with every dimension made small, except for the dropped groups of rules."""
    depths = {value for name, value in config.items() if _group(name) == "layers" and _is_int(value) and value > LAYERS}
    small: Json = {}
    for name, value in config.items():
        if isinstance(value, dict):
            small[name] = shrink(value, dropped)
            if depths and "layers" not in dropped:  # keyed by layer number
                small[name] = {k: v for k, v in small[name].items() if not k.isdigit() or int(k) < LAYERS}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            small[name] = [shrink(item, dropped) if isinstance(item, dict) else item for item in value]
        elif name == "mrope_section" and "headdim" not in dropped:
            small[name] = [3, 3, 2]  # half the head dimension in three parts
        elif isinstance(value, list) and len(value) in depths and "layers" not in dropped:
            # One entry per layer: keep the first kinds and the last, so that hybrids keep both of theirs.
            small[name] = [_shrunk(name, [item], dropped)[0] for item in (*value[: LAYERS - 1], value[-1])]
        elif _TOKEN.match(name) and "tokens" not in dropped and _is_int(value) and value >= VOCAB - 1:
            small[name] = value % 100 + 5
        else:
            small[name] = _shrunk(name, value, dropped)
    if config.get("num_key_value_heads") == config.get("num_attention_heads") and "heads" not in dropped:
        for name in {"num_key_value_heads", "num_attention_heads"} & small.keys():
            small[name] = small["num_attention_heads"]  # classes without grouped queries check that both are equal
    for expand, heads, head_dim in _SPLIT:
        if all(_is_int(small.get(name)) for name in (expand, heads, head_dim, "hidden_size")):
            # State space layers check heads x head dimension against expansion x hidden size, or against a number of its own.
            if _is_int(small.get("mamba_d_ssm")):
                small["mamba_d_ssm"] = small[heads] * small[head_dim]
            else:
                small[heads] = max(1, small[expand] * small["hidden_size"] // small[head_dim])
    return small


def build(cls: type[PreTrainedModel], config: Json, device: str = "meta") -> PreTrainedModel:
    """Return an instance made from the content of a config.json, in the way `from_pretrained` reads it.

    A class that computes with tensors while it is built cannot be built on meta and is built on the CPU instead.
    Raises whatever the class raises.
    """
    config_class: Any = cls.config_class

    def make() -> PreTrainedModel:
        model = cls(config_class.from_dict(copy.deepcopy(config)))
        if transformers.__version__ < "5":
            model.tie_weights()  # version 4 ties after loading, not while building, in some classes
        return model.eval()

    if device == "meta":
        try:
            with torch.device("meta"), _no_values():
                return make()
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            if sum(value for _, value in _numbers(config)) > 3_000_000:
                raise  # not shrunk: would need the memory of the real thing
    return make()


@contextlib.contextmanager
def _no_values() -> Iterator[None]:
    """Skip the filling of new parameters, a quarter of the time of a build on the meta device."""

    def untouched(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    with contextlib.ExitStack() as stack:
        for name in ("kaiming_uniform_", "uniform_", "normal_", "ones_", "zeros_", "constant_", "xavier_uniform_"):
            stack.enter_context(mock.patch.object(torch.nn.init, name, untouched))
        yield


def tiny(cls: type[PreTrainedModel]) -> tuple[Json, PreTrainedModel]:
    """Return the first tiny config that can be built, and its instance. Raises NotBuilt."""
    reasons: list[str] = []
    try:
        for config in tiny_configs(cls):
            try:
                return config, build(cls, config)
            except MemoryError:
                raise
            except Exception as error:  # any class may raise anything; the reason is reported, the next config is tried
                reasons.append(f"{type(error).__name__}: {error}")
    except Exception as error:
        reasons.append(f"{type(error).__name__}: {error}")
    shown = list(dict.fromkeys([*reasons[:1], *reasons[-1:]])) or ["no config"]
    raise NotBuilt(" ".join(" / ".join(reason[:160] for reason in shown).split()))


def numel(model: PreTrainedModel) -> int:
    """Return the number of parameter elements, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def subconfigs(config: Json, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of the nested configs: objects that name a model type or are called a config."""
    for name, value in config.items():
        if isinstance(value, dict) and ("model_type" in value or name.endswith("_config")):
            yield (*prefix, name)
            yield from subconfigs(value, (*prefix, name))


def depths(config: Json, prefix: Path = ()) -> dict[str, int]:
    """Return the numbers of layers in a config, by dotted path."""
    found: dict[str, int] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= depths(value, (*prefix, name))
        elif _is_int(value) and _group(name) == "layers":
            found[".".join((*prefix, name))] = value
    return found


def get(config: Json, path: Path) -> Any:
    """Return the value at a path, None where there is none."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def with_values(config: Json, values: Mapping[Path, Any]) -> Json:
    """Return a copy with values set at paths; None removes the key, as if config.json did not have it."""
    changed = copy.deepcopy(config)
    for path, value in values.items():
        holder = get(changed, path[:-1]) if len(path) > 1 else changed
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
            if value is not None:
                holder[path[-1]] = value
    return changed


def _usable(config: Json) -> Json:
    """Return a config with unusable values replaced, at every level, by the values of its model type."""
    plain = {name: _usable(value) if isinstance(value, dict) else value for name, value in config.items()}
    kind = str(config.get("model_type"))
    plain = _merged(plain, usable.VALUES.get(kind, {}))
    return _merged(plain, usable.VALUES_4.get(kind, {})) if transformers.__version__ < "5" else plain


def _merged(config: Json, values: Mapping[str, Any]) -> Json:
    changed = dict(config)
    for name, value in values.items():
        old = changed.get(name)
        changed[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return changed


def _group(name: str) -> str:
    return next((group for group, pattern, _ in _COMPILED if pattern.fullmatch(name)), "")


def _shrunk(name: str, value: Any, dropped: frozenset[str]) -> Any:
    for group, pattern, small in _COMPILED:
        if pattern.fullmatch(name):
            if group in dropped:
                return value
            if _is_int(value):
                return min(value, small)
            if group == "ffn" and isinstance(value, list) and all(map(_is_int, value)):
                return [min(item, small) for item in value]
            return value
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbers(config: Json) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif _is_int(value) and _group(name) in {"layers", "vocab", "hidden", "ffn"}:
            yield name, value * (100_000 if _group(name) == "layers" else 1)


def _without_dropped(config: Json) -> Json:
    return {name: _without_dropped(value) if isinstance(value, dict) else value for name, value in config.items() if name not in _DROPPED}
