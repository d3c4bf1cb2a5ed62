"""Tokens that were added: which of them have a row that no training has touched. Real tokenizers and models say what is new."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from builders import COLUMNS, EMBED, ROWS, bf16, folder, matrix, safetensors, tied
from tieaudit import Severity, audit

BASE = ROWS - 4  # tokens before the four that were added
TOKENIZER = {
    "added_tokens": [{"id": BASE + n, "content": f"<new_{n}>"} for n in range(4)],
    "model": {"vocab": {f"t{n}": n for n in range(BASE)}},
}


def notes(path: Path, rows: np.ndarray, **keys: object) -> list[tuple[str, str]]:
    files = {"config.json": tied(**keys), "model.safetensors": safetensors({EMBED: rows}), "tokenizer.json": json.dumps(TOKENIZER).encode()}
    report = audit(folder(path, files))
    assert not report.at_least(Severity.WARNING)
    return [(finding.rule, finding.message) for finding in report.findings]


def test_trained_rows_are_silent(tmp_path: Path) -> None:
    assert notes(tmp_path, matrix(1)) == []


def test_equal_rows_of_added_tokens_are_a_note_with_their_names(tmp_path: Path) -> None:
    rows = matrix(1)
    rows[BASE + 1 :] = rows[BASE + 1]
    [(rule, message)] = notes(tmp_path, rows)
    assert rule == "tokenizer-overflow"
    tokens = f"<new_1> ({BASE + 1}), <new_2> ({BASE + 2}), <new_3> ({BASE + 3})"
    assert message == f"{EMBED} was never trained there: 3 rows of added tokens equal to another added token's: {tokens}"


def test_a_constant_row_is_told_apart_from_equal_ones(tmp_path: Path) -> None:
    rows = matrix(1)
    rows[BASE] = 0.5
    rows[BASE + 2] = rows[BASE + 3]
    [(rule, message)] = notes(tmp_path, rows)
    assert rule == "tokenizer-overflow"
    assert f"the row of added tokens one number repeated: <new_0> ({BASE}); 2 rows" in message


def test_zeros_of_the_padding_token_are_how_it_is_kept(tmp_path: Path) -> None:
    rows = matrix(1)
    rows[BASE] = 0
    assert notes(tmp_path / "padding", rows, pad_token_id=BASE) == []
    assert len(notes(tmp_path / "another", rows, pad_token_id=BASE + 1)) == 1


def test_equal_rows_of_the_trained_vocabulary_are_not_looked_at(tmp_path: Path) -> None:
    rows = matrix(1)
    rows[3] = rows[4]
    assert notes(tmp_path, rows) == []


def test_rows_in_bf16_and_of_a_matrix_with_two_ends(tmp_path: Path) -> None:
    rows = matrix(1)
    rows[BASE:] = rows[BASE]
    files = {"config.json": tied(), "model.safetensors": safetensors({EMBED: bf16(rows)}), "tokenizer.json": json.dumps(TOKENIZER).encode()}
    [finding] = audit(folder(tmp_path, files)).findings
    assert finding.severity is Severity.NOTE
    assert [place.nbytes for place in finding.tensors] == [ROWS * COLUMNS * 2]


def test_headers_read_no_row(tmp_path: Path) -> None:
    rows = matrix(1)
    rows[BASE:] = 0.5
    files = {"config.json": tied(), "model.safetensors": safetensors({EMBED: rows}), "tokenizer.json": json.dumps(TOKENIZER).encode()}
    assert audit(folder(tmp_path, files), verify="headers").findings == ()


def test_a_real_model_resized_with_one_mean_for_all_new_rows(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=BASE, hidden_size=COLUMNS, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
    model = LlamaForCausalLM(config)
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    with torch.no_grad():  # what tutorials do for new tokens: every one begins at the mean
        model.model.embed_tokens.weight[BASE:] = model.model.embed_tokens.weight[:BASE].mean(0)
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    [finding] = audit(tmp_path).findings
    assert finding.rule == "tokenizer-overflow"
    assert "4 rows of added tokens equal" in finding.message
