"""Real models with one thing broken: the finding that must come, with its bytes. The other side of test_silent.py."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from builders import EMBED, HEAD, folder, torch_zip
from tieaudit import Severity, audit

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
BART = {"vocab_size": 96, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}
WHISPER = {**BART, "max_source_positions": 16, "max_target_positions": 16, "num_mel_bins": 8}
WHISPER |= {"bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}
NBYTES = 96 * 32 * 4
Tensors = dict[str, torch.Tensor]


class Case(NamedTuple):
    """A class with its ends: the name that is stored, and the head."""

    architecture: str
    keys: Mapping[str, Any]
    embedding: str
    head: str


TIED = [
    Case(
        "Qwen2ForCausalLM", {**TEXT, "num_key_value_heads": 2, "tie_word_embeddings": True}, "model.embed_tokens.weight", "lm_head.weight"
    ),
    Case("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}, EMBED, HEAD),
    Case("GPTNeoXForCausalLM", {**TEXT, "tie_word_embeddings": True}, "gpt_neox.embed_in.weight", "embed_out.weight"),
    Case("BertForMaskedLM", TEXT, "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    Case("RobertaForMaskedLM", TEXT, "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    Case("BartForConditionalGeneration", BART, "model.shared.weight", "lm_head.weight"),
    Case("WhisperForConditionalGeneration", WHISPER, "model.decoder.embed_tokens.weight", "proj_out.weight"),
]
UNTIED = [
    Case("LlamaForCausalLM", GROUPED, EMBED, HEAD),
    Case("GPTNeoXForCausalLM", {**TEXT, "tie_word_embeddings": False}, "gpt_neox.embed_in.weight", "embed_out.weight"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """Each model as transformers saves it, built once."""
    made: dict[str, Path] = {}
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def save(case: Case) -> Path:
        key = f"{case.architecture} {case.keys.get('tie_word_embeddings')}"
        if key not in made:
            torch.manual_seed(0)
            cls = getattr(transformers, case.architecture)
            made[key] = tmp_path_factory.mktemp("model")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cls(cls.config_class(**case.keys)).save_pretrained(made[key])
        return made[key]

    return save


def broken(saved: Path, path: Path, change: Callable[[Tensors], None], *, torch_file: bool = False) -> Path:
    """A copy of the folder with `change` done to its tensors."""
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    shutil.copy(saved / "config.json", path)
    if torch_file:
        return folder(path, {"pytorch_model.bin": torch_zip(tensors)})
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def said(path: Path) -> dict[str, tuple[Severity, int]]:
    return {finding.rule: (finding.severity, finding.wasted_bytes) for finding in audit(path).findings}


@pytest.mark.parametrize("torch_file", [False, True])
@pytest.mark.parametrize("case", TIED, ids=lambda case: case.architecture)
def test_tied_head_stored_again_wastes_its_bytes(saved: Any, case: Case, torch_file: bool, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[case.head] = tensors[case.embedding].clone()

    path = broken(saved(case), tmp_path, change, torch_file=torch_file)
    assert said(path) == {"duplicate-tie": (Severity.WARNING, NBYTES)}
    assert audit(path).totals.nbytes_wasted == NBYTES


@pytest.mark.parametrize("case", TIED, ids=lambda case: case.architecture)
def test_tied_head_with_other_values_is_diverged(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        torch.manual_seed(1)
        tensors[case.head] = torch.randn_like(tensors[case.embedding])

    assert said(broken(saved(case), tmp_path, change)) == {"diverged-tie": (Severity.ERROR, 0)}


@pytest.mark.parametrize("case", TIED, ids=lambda case: case.architecture)
def test_tied_head_with_one_changed_element_is_diverged(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        head = tensors[case.embedding].clone()
        head[37, 5] += 1
        tensors[case.head] = head

    assert said(broken(saved(case), tmp_path, change)) == {"diverged-tie": (Severity.ERROR, 0)}


@pytest.mark.parametrize("case", TIED, ids=lambda case: case.architecture)
def test_tied_head_in_another_dtype_is_a_cast_copy(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[case.head] = tensors[case.embedding].bfloat16()

    assert said(broken(saved(case), tmp_path, change)) == {"cast-copy": (Severity.WARNING, NBYTES // 2)}


@pytest.mark.parametrize("case", TIED, ids=lambda case: case.architecture)
def test_tied_matrix_under_the_heads_name_only_is_inverted(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[case.head] = tensors.pop(case.embedding)

    assert said(broken(saved(case), tmp_path, change)) == {"inverted-alias": (Severity.WARNING, 0)}


@pytest.mark.parametrize("case", TIED, ids=lambda case: case.architecture)
def test_tied_matrix_under_no_name_is_missing(saved: Any, case: Case, tmp_path: Path) -> None:
    path = broken(saved(case), tmp_path, lambda tensors: tensors.__delitem__(case.embedding))
    assert said(path).get("missing-embedding") == (Severity.ERROR, 0)


@pytest.mark.parametrize("case", UNTIED, ids=lambda case: case.architecture)
def test_untied_head_left_out_is_missing(saved: Any, case: Case, tmp_path: Path) -> None:
    path = broken(saved(case), tmp_path, lambda tensors: tensors.__delitem__(case.head))
    assert said(path) == {"missing-head": (Severity.ERROR, 0)}


@pytest.mark.parametrize("case", UNTIED, ids=lambda case: case.architecture)
def test_untied_embedding_left_out_is_missing(saved: Any, case: Case, tmp_path: Path) -> None:
    path = broken(saved(case), tmp_path, lambda tensors: tensors.__delitem__(case.embedding))
    assert said(path) == {"missing-embedding": (Severity.ERROR, 0)}


@pytest.mark.parametrize("case", UNTIED, ids=lambda case: case.architecture)
def test_untied_ends_on_one_storage_are_unwanted(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[case.head] = tensors[case.embedding]

    assert said(broken(saved(case), tmp_path, change, torch_file=True)) == {"unwanted-alias": (Severity.WARNING, 0)}


@pytest.mark.parametrize("case", [*TIED, *UNTIED], ids=lambda case: case.architecture)
def test_embedding_of_other_rows_than_the_config_is_a_mismatch(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[case.embedding] = torch.cat([tensors[case.embedding], torch.randn(4, 32)])

    assert said(broken(saved(case), tmp_path, change)).get("row-mismatch") == (Severity.ERROR, 0)


@pytest.mark.parametrize("case", UNTIED, ids=lambda case: case.architecture)
def test_untied_head_with_rows_and_columns_swapped_is_no_healthy_file(saved: Any, case: Case, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[case.head] = tensors[case.head].T.contiguous()

    assert Severity.ERROR in {severity for severity, _ in said(broken(saved(case), tmp_path, change)).values()}


@pytest.mark.parametrize("case", UNTIED, ids=lambda case: case.architecture)
def test_layer_copied_over_another_is_a_duplicate(saved: Any, case: Case, tmp_path: Path) -> None:
    found: list[int] = []

    def change(tensors: Tensors) -> None:
        for name in tensors:
            if ".1." in name and tensors[name].dim() > 1:
                tensors[name] = tensors[name.replace(".1.", ".0.")].clone()
                found.append(tensors[name].nbytes)

    path = broken(saved(case), tmp_path, change)
    assert {finding.rule for finding in audit(path).findings} == {"duplicate-tensor"}
    assert audit(path).totals.nbytes_wasted == sum(found)
