"""The shipped catalog against the installed transformers, for a sample of architectures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tieaudit.catalog import generate, merge, observation, patterns, structure, tiny  # noqa: E402  (imports torch)

SAMPLE = (
    "BarkModel",
    "BartForConditionalGeneration",
    "BertForMaskedLM",
    "BltForCausalLM",
    "CsmForConditionalGeneration",
    "DabDetrForObjectDetection",
    "DeepseekV3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "GemmaForCausalLM",
    "Lfm2ForCausalLM",
    "LlamaForCausalLM",
    "LlavaForConditionalGeneration",
    "LukeForMaskedLM",
    "MambaForCausalLM",
    "MarianMTModel",
    "MusicgenForConditionalGeneration",
    "OpenAIGPTDoubleHeadsModel",
    "Qwen2VLForConditionalGeneration",
    "SamModel",
    "T5ForConditionalGeneration",
    "ViTModel",
)
MAJOR = f"v{transformers.__version__.partition('.')[0]}"


def shipped() -> dict[str, Any]:
    lines = gzip.decompress(generate.CATALOG.read_bytes()).decode().splitlines()
    return {name: json.loads(text) for name, _, text in (line.partition("\t") for line in lines)}


def test_catalog_has_the_installed_transformers() -> None:
    assert shipped()["#"]["transformers"][MAJOR] == transformers.__version__


def test_sample_is_rebuilt_as_shipped() -> None:
    seen = generate.observe(SAMPLE)["architectures"]
    catalog = shipped()
    for name in SAMPLE:
        assert "error" not in seen[name], (name, seen[name])
        assert _one_reading(merge.entry(seen[name], None)) == _one_reading(catalog[name]), name


def test_catalog_names_every_architecture() -> None:
    catalog = shipped()
    not_built = {line.partition(":")[0] for line in catalog["#"]["not_built"]}
    assert set(tiny.architectures()) <= set(catalog) | not_built


@pytest.mark.parametrize("name", [name for name in SAMPLE if name not in ("CsmForConditionalGeneration", "BarkModel")])
def test_declared_ties_are_the_parameters_that_are_one_object(name: str) -> None:
    cls = tiny.architectures()[name]
    config, model = tiny.tiny(cls)
    for state in observation.STATES:
        model = tiny.build(cls, tiny.with_values(config, {(observation.FLAG,): state}))
        parent = {name: name for name, _ in model.named_parameters(remove_duplicate=False)}

        def root(name: str, parent: dict[str, str] = parent) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        for alias, canonical in model.all_tied_weights_keys.items():
            parent[root(alias)] = root(canonical)
        declared: dict[str, set[str]] = {}
        for each in parent:
            declared.setdefault(root(each), set()).add(each)
        groups = {frozenset(group) for group in declared.values() if len(group) > 1}
        assert groups == {frozenset(group) for group in structure.Structure(model).groups}


def tie(canonical: str, alias: str, v5: str = "101") -> dict[str, Any]:
    return {"canonical": canonical, "alias": alias, "role": "layer", "v5": v5, "names": (canonical, alias)}


def folded(ties: list[dict[str, Any]], *more: str) -> list[tuple[str, str, str]]:
    names = frozenset({*(name for tie in ties for name in (tie["canonical"], tie["alias"])), *more})
    found = patterns.fold(ties, names, lambda _, alias: {"v5": "101" if "tied" in alias else "000"})
    return [(each["canonical"], each["alias"], each["v5"]) for each in found]


def test_integers_equal_on_both_sides_become_one_placeholder() -> None:
    ties = [tie(f"a.{n}.w", f"b.{n}.w") for n in range(3)]
    assert folded(ties) == [("a.{n}.w", "b.{n}.w", "101")]


def test_integers_of_the_alias_alone_become_a_star() -> None:
    ties = [tie(f"a.0.x.{m}.w", f"a.{n}.x.{m}.w") for n in (1, 2) for m in range(2)]
    assert folded(ties) == [("a.0.x.{n}.w", "a.{*}.x.{n}.w", "101")]


def test_a_name_that_matches_and_is_not_tied_forbids_the_pattern() -> None:
    ties = [tie("a.0.w", f"a.{n}.w") for n in (2, 4)]
    assert len(folded(ties, "a.1.w")) == 2


def test_integers_that_differ_by_one_stay_as_they_are() -> None:
    ties = [tie(f"a.{n + 1}.w", f"b.{n}.w") for n in range(3)]
    assert len(folded(ties)) == 3


def test_one_name_that_exists_in_some_states_only_joins_the_pattern() -> None:
    ties = [tie("a.0.w", "b.0.w", "111000"), tie("a.1.w", "b.1.w", "1--0--")]
    assert folded(ties) == [("a.{n}.w", "b.{n}.w", "111000")]


def test_one_catalog_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        merge.write(["#\t{}", "A\t{}"], tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert not list(tmp_path.glob("*.part"))


def _one_reading(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what version 5 alone says: names and, where no key but version 5's decides, its truth."""
    ties = {(tie["canonical"], tie["alias"]): tie["role"] for tie in entry.get("ties", ()) if set(tie["v5"]) != {"0"}}
    kept = ("model_type", "embedding", "head", "names", "rows", "layout")
    return {"ties": ties, **{name: entry[name] for name in kept if name in entry}}
