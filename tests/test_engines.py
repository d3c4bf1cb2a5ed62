"""What the table of engines says, how a checkpoint asks it, and how answers read. The rows of transformers 5 are loaded here."""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from builders import EMBED, HEAD, bf16, config, folder, matrix, safetensors, tied, torch_tensor, torch_zip, untied
from tieaudit import Report, audit
from tieaudit.catalog import lookup as catalog
from tieaudit.cli import cli
from tieaudit.engines import table, words
from tieaudit.engines.lookup import Question, effect, of_gguf, outcomes
from tieaudit.report import EngineOutcome, Tie
from tieaudit.reporters import json as json_report
from tieaudit.reporters import terminal

# [engine, version, family, flag, stored, outcome, silent, mode, index of evidence, detail]: taken down apart from the table
EXPECTED = json.loads(gzip.decompress(Path(__file__).with_name("engine_cells.json.gz").read_bytes()))
SCHEMA = json.loads((Path(json_report.__file__).with_name("report.schema.json")).read_text())


def tie(report: Report) -> Tie:
    return next(tie for tie in report.ties if tie.role == "embedding-head")


def answers(report: Report) -> dict[str, tuple[str, bool | None]]:
    return {found.name: (found.outcome, found.silent) for found in tie(report).engines}


def llama(stored: str, flag: bool | None, model_type: str = "llama", architecture: str = "LlamaForCausalLM") -> dict[str, bytes]:
    keys = {} if flag is None else {"tie_word_embeddings": flag}
    return {"config.json": config(architecture, model_type, **keys), "model.safetensors": safetensors(tensors(stored))}


def tensors(stored: str, embed: str = EMBED, head: str = HEAD) -> dict[str, Any]:
    found = {embed: matrix(1), head: matrix(1 if stored == "equal" else 2), "model.norm.weight": matrix(3, 1)[0]}
    left_out = {"embed_only": head, "head_only": embed}.get(stored)
    return {name: value for name, value in found.items() if name != left_out}


# the table itself


def test_every_cell_is_as_it_was_run_or_read() -> None:
    engines = {(engine.engine, engine.version): engine for engine in table.engines()}
    found, wanted = [], []
    for engine, version, family, flag, stored, outcome, silent, mode, evidence, detail in EXPECTED["cells"]:
        rows = [row for row in engines[engine, version].rows if row.family == family]
        assert len(rows) == 1, (engine, version, family)
        cell = rows[0].cell(flag, stored)
        assert cell is not None, (engine, version, family, flag, stored)
        # a column that is read like another one takes over its mode and its words: only what was run under its own flag says so
        found.append((cell.outcome, cell.silent, cell.mode, rows[0].evidence, cell.detail))
        wanted.append((outcome, silent, mode, EXPECTED["evidence"][evidence], detail))
    assert found == wanted
    assert len(wanted) == 412
    assert Counter(mode for *_, mode, _, _ in wanted) == {"read": 264, "run": 148}


def test_the_table_is_complete_in_itself() -> None:
    for engine in table.engines():
        assert engine.name
        assert engine.checked
        assert engine.rows
        assert set(engine.formats) <= {"safetensors", "torch"}
        types = [model_type for row in engine.rows for model_type in row.types]
        assert len(types) == len(set(types)), engine.name
        for row in engine.rows:
            assert len(row.evidence) > 10, (engine.name, row.family)
            assert set(row.columns) <= set(table.FLAGS)
            for column in row.columns.values():
                assert set(column) == set(table.STORED)
                for cell in column.values():
                    assert cell.outcome in table.vocabulary()
                    assert cell.mode in ("run", "read")
                    assert cell.outcome != "error" or not cell.silent
    assert len({engine.name for engine in table.engines()}) == len(table.engines()) == 21
    assert len(table.gguf_loader().required) == 41


def test_the_rows_of_transformers_differ_only_in_what_an_absent_flag_means() -> None:
    for engine in table.engines():
        if engine.engine == "transformers":
            first, second = engine.rows[:2]
            assert {flag: first.columns[flag] for flag in ("true", "false")} == {flag: second.columns[flag] for flag in ("true", "false")}


def test_the_schema_has_the_vocabulary_of_the_table() -> None:
    engines = SCHEMA["properties"]["ties"]["items"]["properties"]["engines"]
    assert engines["items"]["properties"]["outcome"]["enum"] == list(table.vocabulary())


# asked through a checkpoint


@pytest.mark.parametrize("model_type", sorted({row[0] for row in EXPECTED["nested"]}))
def test_nested_flags_as_transformers_reads_them(tmp_path: Path, model_type: str) -> None:
    architecture = catalog.find(catalog.of_type(model_type)[0])
    assert architecture
    assert architecture.embedding
    assert architecture.head
    rows = [row[1:] for row in EXPECTED["nested"] if row[0] == model_type]
    assert len(rows) == 9
    values = {"true": {"tie_word_embeddings": True}, "false": {"tie_word_embeddings": False}, "absent": {}}
    for stored in ("diff", "embed_only"):
        for top, text, tied_v4, tied_v5 in rows:
            keys = {**values[top], "text_config": {**values[text], "vocab_size": 32, "hidden_size": 8}}
            files = {
                "config.json": config(architecture.name, model_type, **keys),
                "model.safetensors": safetensors(tensors(stored, architecture.embedding, architecture.head)),
            }
            report = audit(folder(tmp_path / f"{stored}-{top}-{text}", files))
            expected = {
                "diff": {
                    "transformers 4": ("head_dropped" if tied_v4 else "both_kept", True),
                    "transformers 5": ("both_kept", not tied_v5),
                },
                "embed_only": {
                    "transformers 4": ("tied_to_embed", True) if tied_v4 else ("head_random", False),
                    "transformers 5": ("tied_to_embed", True) if tied_v5 else ("head_random", False),
                },
            }[stored]
            found = {name: answer for name, answer in answers(report).items() if name.startswith("transformers")}
            assert found == expected, (stored, top, text)


TEXT = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
REAL = {
    "llama": ("LlamaForCausalLM", TEXT),
    "qwen2": ("Qwen2ForCausalLM", TEXT),
    "gemma": ("GemmaForCausalLM", TEXT),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 48, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8,
                                 "bos_token_id": 1, "eos_token_id": 2}),
}  # fmt: skip


class Records(logging.Handler):
    """Warnings that transformers logs while a model is loaded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    records, logger = Records(), logging.getLogger("transformers")
    level = logger.level
    logger.addHandler(records)
    logger.setLevel(logging.WARNING)
    yield records.messages
    logger.removeHandler(records)
    logger.setLevel(level)


def real_folder(path: Path, model_type: str, flag: bool | None, stored: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A model that transformers wrote, with the ends that are asked for; what its embedding and its head would be."""
    name, keys = REAL[model_type]
    torch.manual_seed(7)
    cls = getattr(transformers, name)
    cls(cls.config_class(**keys, tie_word_embeddings=False)).save_pretrained(path)
    state = load_file(path / "model.safetensors")
    embed = next(key for key in state if key.endswith(("embed_tokens.weight", "wte.weight")))
    state[embed], state[HEAD] = torch.randn(48, 16), torch.randn(48, 16)
    if stored == "equal":
        state[HEAD] = state[embed].clone()
    ends = state[embed], state[HEAD]
    left_out = {"embed_only": HEAD, "head_only": embed}.get(stored)
    save_file({key: value for key, value in state.items() if key != left_out}, path / "model.safetensors", {"format": "pt"})
    content = json.loads((path / "config.json").read_text())
    del content["tie_word_embeddings"]
    content |= {} if flag is None else {"tie_word_embeddings": flag}
    (path / "config.json").write_text(json.dumps(content))
    return ends


def loaded(path: Path, embed: torch.Tensor, head: torch.Tensor, stored: str) -> str:
    """The outcome in the table's words, told by values and identity in memory."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    ours, theirs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    from_embed = {"E": stored != "head_only" and torch.equal(ours, embed), "H": stored != "head_only" and torch.equal(theirs, embed)}
    from_head = {"E": stored != "embed_only" and torch.equal(ours, head), "H": stored != "embed_only" and torch.equal(theirs, head)}
    if ours is theirs:
        if from_embed["E"]:
            return "head_dropped" if stored == "diff" else "tied_to_embed"
        assert from_head["E"]
        return "tied_to_head"
    if from_embed["E"] and from_head["H"]:
        return "both_kept"
    if from_embed["E"]:
        assert not from_embed["H"]
        return "head_random"
    assert from_head["H"]
    return "embed_random"


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("model_type", REAL)
def test_transformers_5_does_what_its_rows_say(tmp_path: Path, said: list[str], model_type: str, flag: bool | None) -> None:
    seen, told = {}, {}
    for stored in table.STORED:
        path = tmp_path / stored
        embed, head = real_folder(path, model_type, flag, stored)
        said.clear()
        outcome = loaded(path, embed, head, stored)
        seen[stored] = (outcome, not said)
        told[stored] = answers(audit(path))["transformers 5"]
    assert told == seen


def test_transformers_5_refuses_a_flag_that_is_no_boolean(tmp_path: Path) -> None:
    real_folder(tmp_path, "llama", None, "equal")
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "tie_word_embeddings": None}))
    with pytest.raises(Exception, match="tie_word_embeddings"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    found = answers(audit(tmp_path))
    assert found["transformers 5"] == ("error", False)
    assert found["transformers 4"] == ("both_kept", True)
    assert set(found) == {"transformers 4", "transformers 5"}  # what the others make of null was not looked at


def test_a_torch_file_has_the_answers_for_torch_files(tmp_path: Path) -> None:
    state = {EMBED: torch_tensor(matrix(1)), HEAD: torch_tensor(matrix(2))}
    report = audit(folder(tmp_path, {"config.json": tied(), "pytorch_model.bin": torch_zip(state)}))
    assert answers(report) == {
        "transformers 4": ("head_dropped", True),
        "transformers 5": ("both_kept", False),
        "vLLM 0.32 (.bin)": ("head_dropped", True),
    }


def test_an_absent_flag_is_each_engine_s_own_default(tmp_path: Path) -> None:
    found = answers(audit(folder(tmp_path, llama("diff", None))))
    assert found["transformers 4"] == found["transformers 5"] == found["vLLM ≥ 0.29"] == found["candle"] == ("both_kept", True)
    assert found["mlx-lm"] == ("head_dropped", True)
    assert len(found) == 20


def test_a_required_flag_that_is_absent_is_an_error_of_those_who_require_it(tmp_path: Path) -> None:
    found = answers(audit(folder(tmp_path, llama("diff", None, "qwen3", "Qwen3ForCausalLM"))))
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "transformers 4": "both_kept",
        "transformers 5": "both_kept",
        "mlx-lm": "error",
        "candle": "error",
        "Ollama (MLX)": "both_kept",
    }


def test_mlx_lm_loads_mistral_as_llama(tmp_path: Path) -> None:
    found = answers(audit(folder(tmp_path, llama("diff", None, "mistral", "MistralForCausalLM"))))
    assert found["mlx-lm"] == ("head_dropped", True)
    assert found["TGI"] == ("both_kept", True)


NO_ANSWER: dict[str, dict[str, bytes]] = {
    "a class that is not in the catalog": llama("diff", True, "fancy", "FancyForCausalLM"),
    "no class is named": {"config.json": b'{"model_type": "llama", "vocab_size": 32}', "model.safetensors": safetensors(tensors("diff"))},
    "no config": {"model.safetensors": safetensors(tensors("diff"))},
    "a quantised model": {
        "config.json": tied(quantization_config={"quant_method": "gptq"}),
        "model.safetensors": safetensors(tensors("diff")),
    },
    "names of a wrapper, which no reader strips": {
        "config.json": tied(),
        "model.safetensors": safetensors({f"module.{name}": value for name, value in tensors("diff").items()}),
    },
    "shapes that no reader takes": {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2, 40)})},
    "a head with rows more, the others equal": {
        "config.json": tied(),
        "model.safetensors": safetensors({EMBED: matrix(1, 64), HEAD: np.vstack([matrix(1, 64), matrix(2, 1)])}),
    },
    "neither": {"config.json": tied(), "model.safetensors": safetensors({"model.norm.weight": matrix(3, 1)[0]})},
    "a file that is not named as the model": {"config.json": tied(), "lm.safetensors": safetensors(tensors("diff"))},
}


@pytest.mark.parametrize("what", NO_ANSWER)
def test_no_answer_is_a_guess(tmp_path: Path, what: str) -> None:
    assert [found.engines for found in audit(folder(tmp_path, NO_ANSWER[what])).ties if found.engines] == []


def test_a_pair_that_was_not_compared_has_no_answer(tmp_path: Path) -> None:
    assert answers(audit(folder(tmp_path, llama("diff", True)), verify="headers")) == {}


def test_a_copy_in_another_dtype_has_one_where_the_dtype_of_the_reader_does_not_matter(tmp_path: Path) -> None:
    file = safetensors({EMBED: matrix(1), HEAD: bf16(matrix(1))})
    found = answers(audit(folder(tmp_path / "tied", {"config.json": tied(), "model.safetensors": file})))
    assert set(found) == {"llama.cpp", "exllamav2", "exllamav3", "candle", "Ollama (GGUF)"}  # they keep both, whatever they are
    assert set(found.values()) == {("both_kept", True)}
    found = answers(audit(folder(tmp_path / "untied", {"config.json": untied(), "model.safetensors": file})))
    assert found["transformers 5"] == ("both_kept", True)


def test_only_the_edition_that_readers_open_has_answers(tmp_path: Path) -> None:
    state = {name: torch_tensor(value) for name, value in tensors("diff").items()}
    report = audit(folder(tmp_path, {**llama("diff", True), "pytorch_model.bin": torch_zip(state)}))
    assert [bool(found.engines) for found in report.ties] == [True, False]


def test_names_without_the_base_prefix_are_known_of_transformers_only(tmp_path: Path) -> None:
    files = {
        "config.json": config("GPT2LMHeadModel", "gpt2", n_embd=8),
        "model.safetensors": safetensors({"wte.weight": matrix(1), "h.0.ln_1.weight": matrix(3, 1)[0]}),
    }
    assert answers(audit(folder(tmp_path, files))) == {
        "transformers 4": ("tied_to_embed", True),
        "transformers 5": ("tied_to_embed", True),
    }


BART = {"vocab_size": 48, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 16,
        "pad_token_id": 0}  # fmt: skip


def without(path: Path, *endings: str) -> None:
    """Leave tensors out of a folder's file, as transformers 4 does with what it shares."""
    state = load_file(path / "model.safetensors")
    kept = {name: value for name, value in state.items() if not name.endswith(endings)}
    assert len(kept) == len(state) - len(endings)
    save_file(kept, path / "model.safetensors", {"format": "pt"})


def test_a_matrix_that_one_release_makes_up_takes_its_answer_away(tmp_path: Path) -> None:
    """Embedding and head do not tell the story of BART if its encoder starts at random."""
    cfg = transformers.BartConfig(**BART, tie_word_embeddings=False)
    transformers.BartForConditionalGeneration(cfg).save_pretrained(tmp_path)
    without(tmp_path, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    report = audit(tmp_path)
    assert answers(report) == {"transformers 4": ("both_kept", True)}
    assert {(finding.rule, finding.cause) for finding in report.findings} == {
        ("missing-head", "transformers 4 wrote it: it shares the two whatever the flag says, and stores them once")
    }
    # with the flag true transformers 4 would drop the head, which is a matrix of its own here
    assert {finding.fix for finding in report.findings} == {
        f"if it was trained as model.shared.weight: store it as model.{side}.embed_tokens.weight too; else restore it from the training run"
        for side in ("encoder", "decoder")
    }


def test_a_bias_that_transformers_4_shares_is_to_be_stored_twice(tmp_path: Path) -> None:
    cfg = transformers.BertConfig(vocab_size=48, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                  max_position_embeddings=16, tie_word_embeddings=False)  # fmt: skip
    transformers.BertForMaskedLM(cfg).save_pretrained(tmp_path)
    without(tmp_path, "decoder.bias")
    (finding,) = audit(tmp_path).findings
    assert (finding.rule, finding.fix) == (
        "missing-head",
        "if it was trained as cls.predictions.bias: store it as cls.predictions.decoder.bias too; else restore it from the training run",
    )


@pytest.mark.filterwarnings("ignore:.*torch_dtype.*")
def test_a_t5_1_1_that_transformers_5_saved_again_is_to_get_its_flag_back(tmp_path: Path) -> None:
    cfg = transformers.T5Config(vocab_size=48, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu")
    model = transformers.T5ForConditionalGeneration(cfg)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(48, 16))
    first, second = tmp_path / "first", tmp_path / "second"
    model.save_pretrained(first)
    content = json.loads((first / "config.json").read_text())
    content.pop("scale_decoder_outputs")
    (first / "config.json").write_text(json.dumps({**content, "tie_word_embeddings": False, "transformers_version": "4.57.6"}))
    report = audit(first)
    assert (report.verdict, answers(report)) == ("ok", {"transformers 4": ("both_kept", True), "transformers 5": ("both_kept", False)})
    assert tie(report).claim_source.endswith("; saved by 5 the flag is true, and 4 then drops it")
    again = transformers.T5ForConditionalGeneration.from_pretrained(first)
    again.save_pretrained(second)
    assert json.loads((second / "config.json").read_text())["tie_word_embeddings"] is True
    report = audit(second)
    assert answers(report) == {"transformers 4": ("head_dropped", True), "transformers 5": ("both_kept", False)}
    (finding,) = report.findings
    assert finding.rule == "diverged-tie"
    assert finding.cause == "transformers 5 loaded and saved a file whose flag was false: it writes true, and scale_decoder_outputs false"
    assert finding.fix == "set the flag to false in config.json: transformers 4 then keeps both too, and nothing changes for 5"
    content = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps({**content, "tie_word_embeddings": False}))
    x = torch.arange(4)[None]
    logits = [transformers.T5ForConditionalGeneration.from_pretrained(path).eval()(input_ids=x, decoder_input_ids=x).logits
              for path in (first, second)]  # fmt: skip
    assert torch.equal(*logits)
    assert audit(second).verdict == "ok"


# in words


def test_the_line_of_a_file_that_readers_understand_in_different_ways(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, llama("diff", True)))
    assert words.line(tie(report).engines) == (
        "transformers 4, SGLang, mlx-lm and 9 more drop the head, most silently · onnxruntime-genai drops the embedding and warns · "
        "transformers 5, vLLM ≥ 0.29, llama.cpp and 4 more keep both, some with a warning"
    )
    assert words.clause(tie(report).engines) == (
        "transformers 4, SGLang and mlx-lm drop the head silently; transformers 5, vLLM ≥ 0.29 and llama.cpp keep both, some with a warning"
    )
    assert report.findings[0].message.endswith("; " + words.clause(tie(report).engines))


# (files, the line)
LINES: dict[str, tuple[dict[str, bytes], str]] = {
    "a tied model as it should be": (llama("embed_only", True), ""),
    "one of class gemma": (llama("embed_only", None, "gemma", "GemmaForCausalLM"), ""),
    "an untied model as it should be": (llama("diff", False), ""),
    "equal copies: one or two in memory, but the same model": (llama("equal", True), ""),
    "a flag that mlx-lm takes to be there": (
        llama("diff", None),
        "mlx-lm drops the head silently · transformers, vLLM, SGLang and 12 more keep both",
    ),
    "a second name that mlx-lm refuses": (
        llama("equal", True, "gemma", "GemmaForCausalLM"),
        "mlx-lm cannot use it · transformers, vLLM ≥ 0.29, SGLang and 3 more take the embedding for the head",
    ),
    "a head that is not there": (
        llama("embed_only", False),
        (
            "transformers, vLLM, SGLang and 3 more get a random head, some silently · mlx-lm, TGI, exllamav2 and 5 more cannot use it · "
            "llama.cpp and Ollama take the embedding for the head"
        ),
    ),
    "an embedding that is not there": (
        llama("head_only", True),
        (
            "vLLM and SGLang get a random embedding, most silently · transformers 4, llama.cpp, mlx-lm and 10 more cannot use it · "
            "transformers 5, CTranslate2 (transformers 5) and onnxruntime-genai take the head for the embedding"
        ),
    ),
    "readers that always want a head": (
        llama("embed_only", True, "mistral", "MistralForCausalLM"),
        "TGI and candle cannot use it · transformers and mlx-lm take the embedding for the head",
    ),
}


@pytest.mark.parametrize("what", LINES)
def test_the_line_stands_where_it_says_something(tmp_path: Path, what: str) -> None:
    files, line = LINES[what]
    report = audit(folder(tmp_path, files))
    lines = [text for text in terminal.render(report).splitlines() if text.startswith("  engines")]
    assert lines == ([f"  engines  {line}"] if line else [])


def test_the_line_is_wrapped_on_a_narrow_terminal(tmp_path: Path) -> None:
    shown = terminal.render(audit(folder(tmp_path, llama("diff", None))), width=60).splitlines()
    at = next(number for number, text in enumerate(shown) if text.startswith("  engines"))
    assert shown[at : at + 2] == [
        "  engines  mlx-lm drops the head silently · transformers,",
        "           vLLM, SGLang and 12 more keep both",
    ]


def test_engines_lists_all_of_them(tmp_path: Path) -> None:
    folder(tmp_path / "m", llama("embed_only", True))
    shown = CliRunner().invoke(cli, ["audit", str(tmp_path / "m"), "--engines"]).output.splitlines()
    at = next(number for number, text in enumerate(shown) if text.startswith("  engines"))
    assert shown[at : at + 3] == [
        "  engines  transformers 4                takes the embedding for the head · silent, run on 4.57.6",
        "           transformers 5                takes the embedding for the head · silent, run on 5.24.0",
        "           vLLM ≥ 0.29                   takes the embedding for the head · silent, run on 0.29.0-0.33.0",
    ]
    assert shown[at + 20] == ""  # a line for each of 20


def test_a_long_entry_goes_on_below_its_own_text(tmp_path: Path) -> None:
    shown = terminal.render(audit(folder(tmp_path, llama("head_only", True))), width=80, engines=True).splitlines()
    at = next(number for number, text in enumerate(shown) if text.startswith("           llama.cpp"))
    assert shown[at : at + 3] == [
        "           llama.cpp                     cannot use it (conversion succeeds,",
        "           load fails: tensor token_embd.weight not found) · run on 0c1e57098",
        "           (2026-10-01)",
    ]


def test_engines_says_that_nothing_is_known(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, NO_ANSWER["a class that is not in the catalog"]))
    assert "  engines  not known: no engine was tried or read on such a file" in terminal.render(report, engines=True).splitlines()


def test_json_has_the_answers_of_the_contract(tmp_path: Path) -> None:
    document = json_report.document(audit(folder(tmp_path, llama("diff", True))))
    jsonschema.validate(document, SCHEMA)
    engines = document["ties"][0]["engines"]
    assert len(engines) == 20
    assert engines[0] == {"engine": "transformers", "version": "4.57.6", "outcome": "head_dropped", "silent": True}
    assert engines[1] == {"engine": "transformers", "version": "5.24.0", "outcome": "both_kept", "silent": False}


def test_the_table_is_not_read_where_no_tie_is_about_a_head(tmp_path: Path) -> None:
    table.engines.cache_clear()
    files = {"config.json": config("Qwen2Model", "qwen2"), "model.safetensors": safetensors({"embed_tokens.weight": matrix(1)})}
    audit(folder(tmp_path, files))
    assert table.engines.cache_info().currsize == 0


# small pieces


@pytest.mark.parametrize(
    ("outcome", "stored", "expected"),
    [
        ("tied_to_head", "diff", "lost"),
        ("tied_to_head", "head_only", "intact"),
        ("head_dropped", "diff", "lost"),
        ("head_random", "equal", "random"),
        ("both_kept", "diff", "intact"),
        ("error", "equal", "error"),
    ],
)
def test_effect(outcome: str, stored: str, expected: str) -> None:
    assert effect(outcome, stored) == expected


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [("llama", ("head_random", False)), ("mpt", ("head_random", True)), ("longt5", ("tied_to_embed", False))],
)
def test_a_class_with_a_habit_of_its_own_has_a_row_of_its_own(model_type: str, expected: tuple[str, bool]) -> None:
    (found,) = outcomes(Question(format="safetensors", stored=("embed_only",), tied_v4=False, model_type=model_type))
    assert (found.name, found.outcome, found.silent) == ("transformers 4", *expected)


def test_no_reading_no_answer() -> None:
    assert outcomes(Question(format="safetensors", stored=("diff",))) == ()


@pytest.mark.parametrize(
    ("architecture", "stored", "expected"),
    [
        ("llama", "embed_only", "tied_to_embed"),
        ("llama", "diff", "both_kept"),
        ("qwen2", "head_only", "error"),
        ("olmo2", "embed_only", "error"),
        ("olmo2", "diff", None),
        ("falcon", "embed_only", None),
        ("gemma", "diff", None),
    ],
)
def test_gguf(architecture: str, stored: str, expected: str | None) -> None:
    found: tuple[EngineOutcome, ...] = of_gguf(architecture, stored)
    assert [outcome.outcome for outcome in found] == ([expected] if expected else [])
