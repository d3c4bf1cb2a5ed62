"""Quantised ends as the libraries save them: found, sized, compared, judged. The libraries themselves say what is right."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from builders import EMBED, HEAD, Raw, Tensor, folder, safetensors, tied, untied
from builders import config as config_json
from builders import matrix as numbers
from hub_server import Hub
from tieaudit import audit, dequantise
from tieaudit.bytewise import TensorBytes
from tieaudit.config import read
from tieaudit.evidence import Gathering
from tieaudit.inspectors.rule import Case
from tieaudit.kinds import Verify
from tieaudit.loaders import sharded
from tieaudit.names import Matrix, StoredNames
from tieaudit.quantised import MAINS, ORPHANS
from tieaudit.skiplists import MAX_REGEXES, Plan, Wanted
from tieaudit.sources.target import Access, resolve

ROWS, COLUMNS = 128, 64
WEIGHTS = "model.safetensors"
Edit = Callable[[dict[str, torch.Tensor]], None]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The libraries speak of kernels that are not here, of their own renamings, and of each other's deprecations."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning, UserWarning, ResourceWarning):
            warnings.filterwarnings("ignore", category=kind)
        yield


def gather(path: Path) -> tuple[Case, TensorBytes]:
    """The case of an audit, and the bytes behind it; the folder stays open."""
    source, only = resolve(str(path), Access())
    checkpoint = sharded.load(source, str(path), only, lambda *_: None, [])
    known, fault = read(source)
    gathering = Gathering(source, checkpoint, known, Verify.FULL, 1024, lambda *_: None)
    return gathering.case(fault), TensorBytes(dict(gathering.sources()))


def head_of(path: Path, name: str = HEAD) -> tuple[Matrix, TensorBytes]:
    case, data = gather(path)
    matrix = case.editions[0].stored.find(name)
    assert matrix is not None
    return matrix, data


def rules(path: Path, **options: Any) -> set[str]:
    report = audit(path, **options)
    assert not report.skipped
    return {finding.rule for finding in report.findings}


def hacked(source: Path, target: Path, edit: Edit | None = None, asks: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A copy with other tensors, other keys of config.json, or other keys of its quantisation config."""
    shutil.copytree(source, target)
    content = json.loads((target / "config.json").read_text())
    content.update(keys)
    if asks:
        content["quantization_config"].update(asks)
    (target / "config.json").write_text(json.dumps(content))
    if edit:
        tensors = load_file(target / WEIGHTS)
        edit(tensors)
        save_file(tensors, target / WEIGHTS, {"format": "pt"})
    return target


def head_parts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("lm_head."): tensor for name, tensor in tensors.items() if name.startswith("lm_head.")}


# --- what the libraries write -------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A model whose head is quantised: the head's logical numbers as the library itself reads them, its scheme, words and bytes."""

    path: Path
    truth: np.ndarray | None
    scheme: str
    words: str
    nbytes: int


def _base(root: Path, *, twin: bool) -> Path:
    """An untied model; with `twin` its head holds the numbers of its embedding."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": ROWS, "hidden_size": COLUMNS, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=1, tie_word_embeddings=False, **sizes)).to(torch.bfloat16)
    if twin:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    path = root / ("twin" if twin else "apart")
    model.save_pretrained(path)
    return path


def _reloaded(path: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with quiet():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **options)


def _bitsandbytes(base: Path, target: Path, bits: int, *, double: bool = False) -> np.ndarray | None:
    from transformers import BitsAndBytesConfig

    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}
    asked = BitsAndBytesConfig(llm_int8_skip_modules=["nothing"], **(four if bits == 4 else {"load_in_8bit": True}))
    model = _reloaded(base, quantization_config=asked)
    model.save_pretrained(target)
    if bits == 4:
        return None
    import bitsandbytes.functional as bnb

    head = model.lm_head.weight
    return bnb.int8_vectorwise_dequant(head.data, head.SCB).float().numpy()


def _torchao(base: Path, target: Path, asked: Any) -> np.ndarray:
    from transformers import TorchAoConfig

    model = _reloaded(base, quantization_config=TorchAoConfig(asked, include_input_output_embeddings=True))
    model.save_pretrained(target)
    weight = model.lm_head.weight
    return weight.dequantize().float().numpy()


def _compressed_tensors(base: Path, target: Path, preset: str, ignore: tuple[str, ...] = ()) -> np.ndarray | None:
    """Rounded to the nearest step, which is what the library does without calibration data."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    model = _reloaded(base)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if scheme.input_activations is not None and not scheme.input_activations.dynamic:
        scheme.input_activations = None
    weights = scheme.weights
    assert weights is not None
    if weights.group_size == 128:
        weights.group_size = 32
    with quiet():
        apply_quantization_config(
            model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=list(ignore), quantization_status="initialized")
        )
        for module in model.modules():
            if not hasattr(module, "quantization_scheme"):
                continue
            values = module.weight.data.float()
            size = weights.group_size or (values.shape[1] if weights.strategy == "channel" else 0)
            groups = values.reshape(values.shape[0], -1, size) if size else values.reshape(1, 1, -1)
            whole = None
            if hasattr(module, "weight_global_scale"):
                whole = generate_gparam(values.min().reshape(1), values.max().reshape(1))
                module.weight_global_scale.data.copy_(whole)
            scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), weights, global_scale=whole)
            module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
            module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(target)
        compressor.update_config(str(target))
        compressor.decompress_model(model)
    return None if ignore else model.lm_head.weight.detach().float().numpy()


def _fp8(base: Path, target: Path) -> np.ndarray:
    """Blocks of 32 with a scale each, as FineGrainedFP8Config saves them; transformers on a CPU reads them back as BF16."""

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight") or name == HEAD]:
            rows, columns = tensors[name].shape
            blocks = tensors[name].float().reshape(rows // 32, 32, columns // 32, 32)
            scale = blocks.abs().amax((1, 3)) / 448
            tensors[name] = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
            tensors[name + "_scale_inv"] = scale

    method = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic", "modules_to_not_convert": ["nothing"]}
    hacked(base, target, edit, quantization_config=method)
    return _reloaded(target).lm_head.weight.detach().float().numpy()


def _mlx(base: Path, target: Path, **asked: Any) -> np.ndarray:
    mx = pytest.importorskip("mlx.core")
    weights = {name: mx.array(tensor.float().numpy()) for name, tensor in load_file(base / WEIGHTS).items()}
    packed, *scales = mx.quantize(weights.pop(HEAD), **asked)
    leaves = dict(zip(("weight", "scales", "biases"), (packed, *scales), strict=False))
    shutil.copytree(base, target)
    mx.save_safetensors(str(target / WEIGHTS), {**weights, **{f"lm_head.{leaf}": part for leaf, part in leaves.items()}}, {"format": "mlx"})
    content = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**content, "quantization": {"group_size": 64, "bits": 4, **asked}}))
    return np.array(mx.dequantize(packed, *scales, **asked).astype(mx.float32))


def _forms() -> dict[str, tuple[Callable[[Path, Path], np.ndarray | None], str, str, int]]:
    """name: (saves it, scheme, words, bytes of the head's tensors), of a head of 128 × 64."""
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType, PerGroup

    n = ROWS * COLUMNS
    four = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=MappingType.ASYMMETRIC)
    return {
        "bnb4": (lambda a, b: _bitsandbytes(a, b, 4), "bitsandbytes-4bit", "bitsandbytes 4-bit (nf4)", n // 2 + n // 64 * 4 + 64 + 79),
        "bnb4-double": (
            lambda a, b: _bitsandbytes(a, b, 4, double=True), "bitsandbytes-4bit", "bitsandbytes 4-bit (nf4)",
            n // 2 + n // 64 + 4 + 1024 + 64 + 169,
        ),
        "bnb8": (lambda a, b: _bitsandbytes(a, b, 8), "bitsandbytes-8bit", "bitsandbytes 8-bit", n + ROWS * 4 + 1),
        "torchao-int8": (lambda a, b: _torchao(a, b, Int8WeightOnlyConfig(version=2)), "torchao", "torchao 8-bit", n + ROWS * 5),
        "torchao-int4": (lambda a, b: _torchao(a, b, four), "torchao", "torchao 8-bit", n + ROWS * 2 * 3),
        "torchao-fp8": (lambda a, b: _torchao(a, b, Float8WeightOnlyConfig(version=2)), "torchao", "torchao FP8", n + ROWS * 4),
        "ct-int4": (
            lambda a, b: _compressed_tensors(a, b, "W4A16"), "compressed-tensors", "compressed-tensors 4-bit", n // 2 + ROWS * 4 + 16,
        ),
        "ct-pack8": (lambda a, b: _compressed_tensors(a, b, "W8A16"), "compressed-tensors", "compressed-tensors 8-bit", n + ROWS * 4 + 16),
        "ct-int8": (lambda a, b: _compressed_tensors(a, b, "W8A8"), "int8", "int8", n + ROWS * 2),
        "ct-fp8": (lambda a, b: _compressed_tensors(a, b, "FP8_DYNAMIC"), "fp8", "FP8", n + ROWS * 2),
        "ct-nvfp4": (
            lambda a, b: _compressed_tensors(a, b, "NVFP4A16"), "compressed-tensors", "NVFP4 (compressed-tensors)", n // 2 + n // 16 + 4,
        ),
        "ct-mxfp4": (
            lambda a, b: _compressed_tensors(a, b, "MXFP4A16"), "compressed-tensors", "MXFP4 (compressed-tensors)", n // 2 + n // 32,
        ),
        "ct-mxfp8": (lambda a, b: _compressed_tensors(a, b, "MXFP8A16"), "fp8", "FP8", n + n // 32),
        "fp8-block": (_fp8, "fp8-block", "FP8", n + n // 1024 * 4),
        "mlx-4": (lambda a, b: _mlx(a, b, group_size=32, bits=4), "mlx", "MLX 4-bit", n // 2 + n // 32 * 8),
        "mlx-3": (lambda a, b: _mlx(a, b, group_size=64, bits=3), "mlx", "MLX 3-bit", n * 3 // 8 + n // 64 * 8),
        "mlx-6": (lambda a, b: _mlx(a, b, group_size=64, bits=6), "mlx", "MLX 6-bit", n * 6 // 8 + n // 64 * 8),
        "mlx-8": (lambda a, b: _mlx(a, b, group_size=64, bits=8), "mlx", "MLX 8-bit", n + n // 64 * 8),
        "mlx-mxfp4": (lambda a, b: _mlx(a, b, group_size=32, bits=4, mode="mxfp4"), "mlx", "MLX mxfp4", n // 2 + n // 32),
        "mlx-mxfp8": (lambda a, b: _mlx(a, b, group_size=32, bits=8, mode="mxfp8"), "mlx", "MLX mxfp8", n + n // 32),
        "mlx-nvfp4": (lambda a, b: _mlx(a, b, group_size=16, bits=4, mode="nvfp4"), "mlx", "MLX nvfp4", n // 2 + n // 16),
    }  # fmt: skip


FORMS = (
    "bnb4", "bnb4-double", "bnb8", "torchao-int8", "torchao-int4", "torchao-fp8", "ct-int4", "ct-pack8", "ct-int8", "ct-fp8", "ct-nvfp4",
    "ct-mxfp4", "ct-mxfp8", "fp8-block", "mlx-4", "mlx-3", "mlx-6", "mlx-8", "mlx-mxfp4", "mlx-mxfp8", "mlx-nvfp4",
)  # fmt: skip
UNDECODED = ("bnb4", "bnb4-double")


class Library:
    """Saves each form once per base model."""

    def __init__(self, root: Path) -> None:
        with quiet():
            self._bases = {twin: _base(root, twin=twin) for twin in (False, True)}
            self._forms = _forms()
        self._root, self._saved = root, dict[tuple[str, bool], Saved]()

    def __call__(self, form: str, *, twin: bool = False) -> Saved:
        if (form, twin) not in self._saved:
            save, scheme, words, nbytes = self._forms[form]
            target = self._root / f"{form}-{twin}"
            with quiet():
                self._saved[form, twin] = Saved(target, save(self._bases[twin], target), scheme, words, nbytes)
        return self._saved[form, twin]

    def base(self, *, twin: bool = False) -> Path:
        return self._bases[twin]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("quantised"))


def test_the_list_of_forms_is_complete() -> None:
    with quiet():
        assert tuple(_forms()) == FORMS


@pytest.mark.parametrize("form", FORMS)
def test_scheme_shape_and_bytes_are_those_of_the_library(form: str, library: Library) -> None:
    saved = library(form)
    head, _ = head_of(saved.path)
    with safe_open(saved.path / WEIGHTS, "pt") as file:
        stored = {name: file.get_slice(name) for name in file.keys() if name.startswith("lm_head.")}  # noqa: SIM118
    assert {part.name for part in head.parts} == set(stored)
    assert (head.scheme, head.form, head.shape, head.rows, head.packed) == (saved.scheme, saved.words, (ROWS, COLUMNS), ROWS, True)
    assert head.nbytes == saved.nbytes == sum(tensor.nbytes for tensor in head_parts(load_file(saved.path / WEIGHTS)).values())


@pytest.mark.parametrize("form", [form for form in FORMS if form not in UNDECODED])
def test_dequantised_rows_are_those_of_the_library(form: str, library: Library) -> None:
    saved = library(form)
    head, data = head_of(saved.path)
    chosen = [0, 1, 77, ROWS - 1]
    ours, steps = dequantise.rows(head, chosen, COLUMNS, data)
    assert saved.truth is not None
    theirs = saved.truth[chosen]
    if "nvfp4" in form and form.startswith("ct"):
        theirs = theirs * (ours[0, 0] / theirs[0, 0])  # its scale of the whole matrix is left out, for it changes no angle
    np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=1e-4)
    # a step is what lies between two numbers that could have been stored: no number of the source is farther away
    assert steps.shape == ours.shape
    assert (steps >= 0).all()
    assert steps.max() > 0


@pytest.mark.parametrize("form", FORMS)
def test_an_untied_head_that_is_quantised_is_healthy(form: str, library: Library) -> None:
    for twin in (False, True):
        report = audit(library(form, twin=twin).path)
        assert report.verdict == "ok", report.findings
        assert report.reason.startswith("untied: "), report.reason


@pytest.mark.parametrize("form", FORMS)
def test_a_tied_head_that_is_quantised_alone_is_one_sided_or_diverged(form: str, library: Library, tmp_path: Path) -> None:
    one = hacked(library(form, twin=True).path, tmp_path / "one", tie_word_embeddings=True)
    other = hacked(library(form).path, tmp_path / "other", tie_word_embeddings=True)
    assert rules(one) == {"one-sided-quantization"}
    assert rules(other) == {"one-sided-quantization" if form in UNDECODED else "diverged-tie"}
    finding = audit(one).findings[0]
    assert {place.name for place in finding.tensors} == {EMBED, *(f"lm_head.{leaf}" for leaf in head_parts(load_file(one / WEIGHTS)))}
    assert (finding.severity.value, finding.wasted_bytes) == ("warning", 0)
    assert f"{EMBED} is BF16 and {HEAD} is {library(form).words}" in finding.message or form.startswith("mlx")
    # headers alone tell the two forms, and nothing of their values
    assert rules(other, verify="headers") == {"one-sided-quantization"}


@pytest.mark.parametrize("form", FORMS)
def test_equal_bundles_are_a_duplicate_of_all_their_bytes(form: str, library: Library, tmp_path: Path) -> None:
    saved = library(form)

    def twice(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[EMBED]
        tensors.update({f"model.embed_tokens.{leaf}": tensor.clone() for leaf, tensor in head_parts(tensors).items()})

    path = hacked(saved.path, tmp_path / "twice", twice, tie_word_embeddings=True)
    report = audit(path, min_waste=1)
    assert [(finding.rule, finding.wasted_bytes, finding.evidence.value) for finding in report.findings] == [
        ("duplicate-tie", saved.nbytes, "proved")
    ]
    assert report.totals.nbytes_wasted == saved.nbytes

    def one_scale_more(tensors: dict[str, torch.Tensor]) -> None:
        twice(tensors)
        name = next(
            name for name in tensors if name.startswith("lm_head.") and name.rpartition(".")[2][-6:] != "weight" and "qdata" not in name
        )
        flat = (
            tensors[name].reshape(-1).view(torch.uint8).clone()
            if tensors[name].dim()
            else tensors[name].reshape(1).view(torch.uint8).clone()
        )
        flat[-1] ^= 1
        tensors[name] = flat.view(tensors[name].dtype).reshape(tensors[name].shape)

    assert "duplicate-tie" not in rules(hacked(saved.path, tmp_path / "changed", one_scale_more, tie_word_embeddings=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_tied_matrix_that_is_stored_once_is_healthy(form: str, library: Library, tmp_path: Path) -> None:
    saved = library(form)

    def float_only(tensors: dict[str, torch.Tensor]) -> None:
        for leaf in head_parts(tensors):
            del tensors[f"lm_head.{leaf}"]

    def packed_only(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[EMBED]
        for leaf, tensor in head_parts(tensors).items():
            tensors[f"model.embed_tokens.{leaf}"] = tensors.pop(f"lm_head.{leaf}")
            assert tensor.numel()

    for name, edit in {"float": float_only, "packed": packed_only}.items():
        path = hacked(saved.path, tmp_path / name, edit, tie_word_embeddings=True)
        if form.startswith("ct") and name == "packed":
            # who quantises an embedding with this library has to name it
            text = (path / "config.json").read_text()
            (path / "config.json").write_text(text.replace('"Linear"', '"Linear", "Embedding"'))
        report = audit(path)
        assert report.verdict == "ok", (name, report.findings)
        (tie,) = report.ties
        assert tie.shape == (ROWS, COLUMNS)
        if name == "packed":
            assert (tie.nbytes, tie.saves_bytes, tie.dtype) == (saved.nbytes, saved.nbytes, saved.words)
    # and untied, the head is missed
    assert rules(hacked(saved.path, tmp_path / "untied", float_only)) == {"missing-head"}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_packed_head_are_checked(form: str, library: Library, tmp_path: Path) -> None:
    path = hacked(library(form).path, tmp_path / "rows", vocab_size=ROWS + 1)
    messages = [finding.message for finding in audit(path, select=["row-mismatch"]).findings]
    assert messages == [f"{name} has {ROWS} rows, but vocab_size is {ROWS + 1}" for name in sorted((HEAD, EMBED))]


def test_what_transformers_saves_of_a_tied_model_is_healthy(library: Library, tmp_path: Path) -> None:
    from transformers import BitsAndBytesConfig

    def without_head(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[HEAD]

    base = hacked(library.base(twin=True), tmp_path / "tied", without_head, tie_word_embeddings=True)
    model = _reloaded(base, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    with quiet():
        model.save_pretrained(tmp_path / "saved")
    assert audit(tmp_path / "saved").verdict == "ok"
    with quiet():
        _compressed_tensors(base, tmp_path / "ignored", "W4A16", ("lm_head",))
        _compressed_tensors(base, tmp_path / "quantised", "W4A16")
    assert audit(tmp_path / "ignored").verdict == "ok"
    # the library itself writes the tied head a second time, packed
    assert rules(tmp_path / "quantised") == {"one-sided-quantization"}


# --- configs that contradict ---------------------------------------------------------------------------------------------------


def breaks(path: Path) -> bool:
    """Whether transformers fails on the head, or reads other numbers for it than the file holds."""
    try:
        with quiet():
            model, told = _reloaded(path, output_loading_info=True)
            if any("lm_head" in str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in told[kind]):
                return True
            model(torch.arange(8).reshape(1, 8))
    except (RuntimeError, AssertionError, AttributeError):
        return True
    return False


CONTRADICTIONS = {
    "ct-int4": [({"ignore": ["lm_head"]}, True), ({"ignore": ["re:.*lm_head"]}, True), ({"ignore": ["re:lm$"]}, False), ({}, False)],
    "ct-int8": [({"ignore": ["lm_head"]}, True), ({"ignore": ["model.layers.9.mlp.up_proj"]}, False)],
    "ct-fp8": [({"ignore": ["lm_head"]}, True), ({}, False)],
    "bnb4": [({"llm_int8_skip_modules": None}, True), ({"llm_int8_skip_modules": ["lm_head"]}, True), ({}, False)],
    "bnb8": [({"llm_int8_skip_modules": ["lm.*"]}, True), ({"llm_int8_skip_modules": ["embed_tokens"]}, False)],
    "torchao-int8": [({"modules_to_not_convert": ["lm_head"]}, False), ({"include_input_output_embeddings": False}, False)],
}


@pytest.mark.parametrize(("form", "at"), [(form, at) for form, cases in CONTRADICTIONS.items() for at in range(len(cases))])
def test_a_packed_head_that_the_config_skips(form: str, at: int, library: Library, tmp_path: Path) -> None:
    change, wrong = CONTRADICTIONS[form][at]
    path = hacked(library(form).path, tmp_path / "model", asks=change)
    assert breaks(path) is wrong
    assert rules(path) == ({"quantization-contradiction"} if wrong else set())


@pytest.mark.parametrize("form", ["ct-int4", "ct-int8", "ct-fp8", "ct-nvfp4", "bnb4", "bnb8"])
def test_a_float_head_that_the_config_quantises(form: str, library: Library, tmp_path: Path) -> None:
    base = load_file(library.base() / WEIGHTS)

    def floats(tensors: dict[str, torch.Tensor]) -> None:
        for leaf in head_parts(tensors):
            del tensors[f"lm_head.{leaf}"]
        tensors[HEAD] = base[HEAD]

    wrong = hacked(library(form).path, tmp_path / "wrong", floats)
    key = "llm_int8_skip_modules" if form.startswith("bnb") else "ignore"
    right = hacked(library(form).path, tmp_path / "right", floats, asks={key: ["lm_head"]})
    assert (breaks(wrong), breaks(right)) == (True, False)
    assert (rules(wrong), rules(right)) == ({"quantization-contradiction"}, set())
    (finding,) = audit(wrong).findings
    assert (finding.severity.value, [place.name for place in finding.tensors]) == ("error", [HEAD])


def test_an_fp8_head_that_the_config_skips_loses_its_scale_on_a_gpu(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

    # made before: the form itself is read back as on a CPU
    saved = library("fp8-block").path
    # without a GPU it reads everything as BF16, scale and all; what it would make of the names on one is asked here
    monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_, **__: None)
    for number, (skipped, wrong) in enumerate((((["lm_head"]), True), (None, True), (["nothing"], False))):
        path = hacked(saved, tmp_path / str(number), asks={"modules_to_not_convert": skipped})
        with quiet():
            _, told = _reloaded(path, output_loading_info=True)
        assert ("lm_head.weight_scale_inv" in told["unexpected_keys"]) is wrong
        assert rules(path) == ({"quantization-contradiction"} if wrong else set())


def ask(method: str, data: dict[str, Any], *names: str, head: bool = True, key: str = "quantization_config") -> Wanted | None:
    answer = Plan("config.json", key, {"quant_method": method, **data}).asks(names or ("lm_head",), head=head)
    return answer.wanted if answer else None


def test_lists_are_matched_as_transformers_matches_them() -> None:
    from transformers.quantizers.quantizers_utils import should_convert_module

    bnb = {"load_in_4bit": True}
    for entry in (
        "lm_head",
        "head",
        "lm",
        "lm_",
        "lm.*",
        ".*",
        "LM_HEAD",
        "model",
        "model.lm_head",
        "a|lm_head",
        "lm_head$",
        "lm_head.",
        "[lL]m_head",
    ):
        told = ask("bitsandbytes", {**bnb, "llm_int8_skip_modules": [entry]})
        assert told in (None, Wanted.PACKED if should_convert_module("lm_head", [entry]) else Wanted.FLOAT), entry
    # certain where it must be
    assert ask("bitsandbytes", {**bnb, "llm_int8_skip_modules": ["lm_head"]}) is Wanted.FLOAT
    assert ask("bitsandbytes", {**bnb, "llm_int8_skip_modules": ["q_proj"]}) is Wanted.PACKED
    # the same head under another model's prefix: releases differ
    assert ask("bitsandbytes", {**bnb, "llm_int8_skip_modules": ["language_model.lm_head"]}) is None


def test_targets_are_matched_as_compressed_tensors_matches_them() -> None:
    from compressed_tensors.utils.match import is_match

    weights = {"num_bits": 4}
    for ignore in (
        [],
        ["lm_head"],
        ["Linear"],
        ["re:.*head"],
        ["re:head"],
        ["model.lm_head"],
        ["Embedding"],
        ["re:^(?!.*layers).*$"],
        ["re:("],
    ):
        for targets in (["Linear"], ["re:.*"], ["lm_head"], ["Embedding"], ["re:model.*"], []):
            for head, module in ((True, torch.nn.Linear(2, 2)), (False, torch.nn.Embedding(2, 2))):
                name = "lm_head" if head else "model.embed_tokens"
                data = {"config_groups": {"group_0": {"targets": targets, "weights": weights}}, "ignore": ignore}
                told = ask("compressed-tensors", data, name, head=head)
                if ignore != ["re:("]:
                    packed = is_match(name, module, targets, ignore)
                    assert told in (None, Wanted.PACKED if packed else Wanted.FLOAT), (ignore, targets, name)
    assert ask("compressed-tensors", {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}, "ignore": ["re:("]}) is None
    assert ask("compressed-tensors", {"config_groups": {}}) is None
    assert ask("compressed-tensors", {}) is None
    assert ask("compressed-tensors", {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}) is Wanted.PACKED


@pytest.mark.parametrize(
    ("method", "data", "wanted"),
    [
        ("gptq", {}, Wanted.FLOAT),
        ("gptq", {"lm_head": False}, Wanted.FLOAT),
        ("gptq", {"lm_head": True}, None),
        ("gptq", {"dynamic": {"+:lm_head": {}}}, None),
        ("awq", {"modules_to_not_convert": []}, Wanted.FLOAT),
        ("awq", {"lm_head": True}, None),
        ("fp8", {}, Wanted.FLOAT),
        ("fp8", {"ignored_layers": ["lm_head"]}, Wanted.FLOAT),
        ("fp8", {"modules_to_not_convert": ["gate"]}, None),
        ("modelopt", {"ignore": ["lm_head"]}, Wanted.FLOAT),
        ("modelopt_fp4", {"ignore": ["lm_*"]}, Wanted.FLOAT),
        ("modelopt", {"quantization": {"exclude_modules": ["lm_head"]}}, Wanted.FLOAT),
        ("modelopt", {"ignore": ["proj_out"]}, None),
        ("modelopt", {}, None),
        ("bitsandbytes", {}, None),
        ("bitsandbytes", {"load_in_8bit": True, "llm_int8_skip_modules": "lm_head"}, None),
        ("bitsandbytes", {"load_in_8bit": True, "llm_int8_skip_modules": [1]}, None),
        ("auto-round", {}, None),
        ("hqq", {"skip_modules": ["lm_head"]}, None),
        ("", {}, None),
    ],
)
def test_each_method_has_its_own_keys(method: str, data: dict[str, Any], wanted: Wanted | None) -> None:
    assert ask(method, data) is wanted


def test_an_mlx_entry_decides_and_nothing_else() -> None:
    for given, wanted in ((False, Wanted.FLOAT), ({"bits": 8}, Wanted.PACKED), (None, None)):
        assert ask("", {"bits": 4, "group_size": 64, "lm_head": given}, key="quantization") is wanted
    assert ask("", {"bits": 4, "group_size": 64}, key="quantization") is None


@pytest.mark.parametrize("false", [True, False])
def test_mlx_and_modelopt_configs_are_heard(false: bool, library: Library, tmp_path: Path) -> None:
    path = hacked(library("mlx-4").path, tmp_path / "mlx")
    content = json.loads((path / "config.json").read_text())
    content["quantization"]["lm_head"] = False if false else {"bits": 4, "group_size": 32}
    (path / "config.json").write_text(json.dumps(content))
    assert rules(path) == ({"quantization-contradiction"} if false else set())
    head = modelopt_head(numbers(2, 32, 64))
    excluded = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"] if false else []}}
    keys = {"vocab_size": 32, "hidden_size": 64}
    files = {"config.json": untied(**keys), "hf_quant_config.json": json.dumps(excluded).encode()}
    path = folder(tmp_path / "modelopt", {**files, WEIGHTS: safetensors({EMBED: numbers(1, 32, 64), **head})})
    assert rules(path) == ({"quantization-contradiction"} if false else set())


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(?:a*)*b",
        "(a|a)*b",
        "(.*)(.*)(.*)(.*)(.*)(.*)(.*)x",
        "a{1000000}",
        "(x)\\1",
        "(a|a)" * 39,
        "a?" * 99,
        "[",
        "(" * 200,
        "x" * 201,
    ],
)
def test_patterns_that_may_not_end_are_not_run(pattern: str) -> None:
    name = "a" * 120
    started = time.process_time()
    for method, data in (
        ("bitsandbytes", {"load_in_4bit": True, "llm_int8_skip_modules": [pattern] * MAX_REGEXES}),
        ("compressed-tensors", {"config_groups": {"g": {"targets": ["Linear"], "weights": {}}}, "ignore": ["re:" + pattern] * MAX_REGEXES}),
    ):
        assert ask(method, data, name) is None
    assert time.process_time() - started < 15


def test_a_list_without_end_is_not_searched() -> None:
    started = time.process_time()
    for entries in ([".*x"] * (MAX_REGEXES + 1), ["lm_head"] * 20_001):
        assert ask("bitsandbytes", {"load_in_4bit": True, "llm_int8_skip_modules": entries}) is None
    assert time.process_time() - started < 15


# --- layouts whose libraries are not here ---------------------------------------------------------------------------------------


def pack(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """32-bit words of `bits`-bit codes along an axis, low bits first: bit by bit, so that 3 bits work too."""
    moved = np.moveaxis(codes.astype(np.uint64), axis, -1)
    ones = (moved[..., None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    stream = ones.reshape(*moved.shape[:-1], -1, 32)
    words = (stream << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return np.moveaxis(words, -1, axis)


def codes_of(bits: int, rows: int = 32, columns: int = 64) -> np.ndarray:
    return ((numbers(bits, rows, columns) + 1) / 2 * ((1 << bits) - 1)).astype(np.int64)


def gptq_head(bits: int, *, order: bool = True, zeros: bool = True, group: int = 16) -> dict[str, Tensor]:
    codes = codes_of(bits)  # 32 rows (the vocabulary), 64 columns: packed along the columns, transposed
    groups = 64 // group
    found: dict[str, Tensor] = {"lm_head.qweight": pack(codes.T, bits, 0), "lm_head.scales": np.ones((groups, 32), np.float16)}
    if zeros:
        found["lm_head.qzeros"] = pack(np.zeros((groups, 32)), bits, 1)
    if order:
        found["lm_head.g_idx"] = (np.arange(64) // group).astype(np.int32)
    return found


def awq_head(bits: int = 4) -> dict[str, Tensor]:
    codes = codes_of(bits)
    return {
        "lm_head.qweight": pack(codes.T, bits, 1), "lm_head.scales": np.ones((4, 32), np.float16),
        "lm_head.qzeros": pack(np.zeros((4, 32)), bits, 1),
    }  # fmt: skip


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def modelopt_head(weights: np.ndarray) -> dict[str, Tensor]:
    """NVFP4: two codes a byte, low half first; a scale in E4M3 per 16, one more for all. Scales of one are exact."""
    nearest = np.abs(weights[..., None] * 6 - E2M1).argmin(-1)
    packed = (nearest[:, 0::2] | nearest[:, 1::2] << 4).astype(np.uint8)
    ones = Raw("F8_E4M3", (weights.shape[0], weights.shape[1] // 16), bytes([0x38]) * (weights.size // 16))
    return {
        HEAD: packed, "lm_head.weight_scale": ones, "lm_head.weight_scale_2": Raw("F32", (), np.float32(1 / 6).tobytes()),
        "lm_head.input_scale": Raw("F32", (), np.float32(1).tobytes()),
    }  # fmt: skip


def hqq_head(*, note: bool = True) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {
        "lm_head.W_q": codes_of(8, 16).astype(np.uint8), "lm_head.scale": np.ones((32, 1), np.float16),
        "lm_head.zero": np.ones((32, 1), np.float16),
    }  # fmt: skip
    return {**found, "lm_head.shape": np.array([32, 64], np.int64)} if note else found


SYNTHETIC: dict[str, tuple[dict[str, Tensor], str, tuple[int, ...], int | None]] = {
    "gptq-4": (gptq_head(4), "GPTQ 4-bit", (32, 64), 32),
    "gptq-3": (gptq_head(3), "GPTQ 3-bit", (32, 64), 32),
    "gptq-8": (gptq_head(8, order=False), "GPTQ 8-bit", (32, 64), 32),
    "gptq-2 without zeros": (gptq_head(2, zeros=False), "GPTQ 2-bit", (32, 64), 32),
    "gptq without either": (gptq_head(4, zeros=False, order=False), "GPTQ", (), 32),
    "awq-4": (awq_head(), "AWQ 4-bit", (32, 64), 32),
    "modelopt nvfp4": (modelopt_head(numbers(2, 32, 64)), "NVFP4 (ModelOpt)", (32, 64), 32),
    "hqq": (hqq_head(), "HQQ", (32, 64), 32),
    "hqq without its shape": (hqq_head(note=False), "HQQ", (), None),
    "mxfp4": (
        {
            "lm_head.weight_blocks": codes_of(8, 32, 32).astype(np.uint8).reshape(32, 2, 16),
            "lm_head.weight_scales": codes_of(7, 32, 2).astype(np.uint8),
        },
        "MXFP4", (32, 64), 32,
    ),
    "quanto": (
        {"lm_head.weight._data": codes_of(7).astype(np.int8), "lm_head.weight._scale": np.ones((32, 1), np.float32)},
        "Quanto 8-bit", (32, 64), 32,
    ),
    "exl3": ({"lm_head.trellis": codes_of(8, 8, 8).astype(np.int32), "lm_head.suh": np.ones(64, np.float16)}, "EXL3", (), None),
    "eetq": ({HEAD: codes_of(7, 64, 32).astype(np.int8), "lm_head.weight_scales": np.ones(32, np.float16)}, "EETQ 8-bit", (), None),
    "integers alone": ({HEAD: codes_of(8, 16).astype(np.uint8)}, "U8 in an unknown layout", (), None),
    "half a bundle": ({"lm_head.weight_packed": codes_of(8, 32, 8).astype(np.int32)}, "quantised in an unknown layout", (), None),
}  # fmt: skip


@pytest.mark.parametrize("form", SYNTHETIC)
def test_documented_layouts_are_recognised(form: str, tmp_path: Path) -> None:
    head, words, shape, rows = SYNTHETIC[form]
    keys = {"vocab_size": 32, "hidden_size": 64}
    embed = numbers(1, 32, 64)
    path = folder(tmp_path / "untied", {"config.json": untied(**keys), WEIGHTS: safetensors({EMBED: embed, **head})})
    found, _ = head_of(path)
    assert (found.form, found.shape, found.rows) == (words, shape, rows)
    assert {part.name for part in found.parts} == set(head)
    assert rules(path) == set()  # in no case is the head missed, or taken for another matrix
    one_sided = folder(tmp_path / "tied", {"config.json": tied(**keys), WEIGHTS: safetensors({EMBED: embed, **head})})
    assert rules(one_sided) == {"diverged-tie" if form == "modelopt nvfp4" else "one-sided-quantization"}


def test_nvfp4_of_modelopt_is_decoded_as_it_was_packed(tmp_path: Path) -> None:
    weights = numbers(2, 32, 64)
    keys = {"vocab_size": 32, "hidden_size": 64}
    path = folder(tmp_path, {"config.json": tied(**keys), WEIGHTS: safetensors({EMBED: weights, **modelopt_head(weights)})})
    head, data = head_of(path)
    ours, _ = dequantise.rows(head, [0, 5, 31], 64, data)
    nearest = E2M1[np.abs(weights[..., None] * 6 - E2M1).argmin(-1)]
    np.testing.assert_array_equal(ours, nearest[[0, 5, 31]])
    assert rules(path) == {"one-sided-quantization"}


def test_experts_without_the_word_weight_are_found() -> None:
    from tieaudit.checkpoint import Storage, TensorRecord

    storage = Storage("f", "0", 0, 1 << 20)
    blocks = TensorRecord("experts.gate_up_proj_blocks", "U8", (4, 8, 2, 16), storage, 0, 1024)
    scales = TensorRecord("experts.gate_up_proj_scales", "U8", (4, 8, 2), storage, 1024, 64)
    found = StoredNames((blocks, scales)).exact("experts.gate_up_proj")
    assert found is not None
    assert (found.form, found.shape, found.nbytes) == ("MXFP4", (4, 8, 64), 1088)


# --- what must not be taken for a bundle -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf", ["scale", "zero", "biases", "scales", "weight_scale", "SCB", "input_scale", "bias", "g_idx"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_float_weight_is_no_bundle_whatever_stands_beside_it(leaf: str, flag: bool, tmp_path: Path) -> None:
    beside = np.ones((32, 1), np.float32)
    files = {EMBED: numbers(1), HEAD: numbers(1), f"lm_head.{leaf}": beside, f"model.embed_tokens.{leaf}": beside}
    path = folder(tmp_path, {"config.json": config_json(tie_word_embeddings=flag), WEIGHTS: safetensors(files)})
    head, _ = head_of(path)
    assert (head.packed, head.parts[1:], head.form, head.shape) == (False, (), "F32", (32, 8))
    assert rules(path) == {"duplicate-tie" if flag else "untied-but-equal"}


def test_a_bias_of_the_head_is_no_part_of_its_bundle(tmp_path: Path) -> None:
    head = {HEAD: np.ones((32, 8), np.int8), "lm_head.weight_scale": np.ones((32, 1), np.float32), "lm_head.bias": np.ones(32, np.float32)}
    path = folder(tmp_path, {"config.json": untied(), WEIGHTS: safetensors({EMBED: numbers(1), **head})})
    assert [part.name for part in head_of(path)[0].parts] == [HEAD, "lm_head.weight_scale"]


def test_scales_without_their_head_are_told_and_counted(tmp_path: Path) -> None:
    scales = {"lm_head.scales": numbers(4), "lm_head.biases": numbers(5)}
    embed: dict[str, Tensor] = {
        EMBED: Raw("U32", (32, 1), numbers(1).tobytes()[:128]),
        "model.embed_tokens.scales": np.ones((32, 1), np.float32),
    }
    embed["model.embed_tokens.biases"] = np.ones((32, 1), np.float32)
    path = folder(tmp_path / "mlx", {"config.json": tied(), WEIGHTS: safetensors({**embed, **scales})})
    (finding,) = audit(path).findings
    assert (finding.rule, finding.wasted_bytes) == ("one-sided-quantization", 2048)
    assert [place.name for place in finding.tensors] == list(scales)
    # untied it is the head itself that is missed
    assert rules(folder(tmp_path / "untied", {"config.json": untied(), WEIGHTS: safetensors({**embed, **scales})})) == {"missing-head"}
    # in a part of a model the head may be elsewhere
    assert rules(folder(tmp_path / "plain", {"config.json": tied(), WEIGHTS: safetensors({EMBED: numbers(1)})})) == set()


def test_a_constant_scale_says_nothing_about_another_one(tmp_path: Path) -> None:
    codes = np.frombuffer(bytes(range(256)), np.int8).reshape(32, 8)
    for name, scale, expected in (("equal", np.full((32, 1), 0.5, np.float32), {"duplicate-tie"}), ("other", numbers(3, 32, 1), set())):
        ends = {
            EMBED: codes, "model.embed_tokens.weight_scale": np.full((32, 1), 0.5, np.float32), HEAD: codes, "lm_head.weight_scale": scale,
        }  # fmt: skip
        path = folder(tmp_path / name, {"config.json": tied(), WEIGHTS: safetensors(ends)})
        assert rules(path) >= expected
        assert ("duplicate-tie" in rules(path)) is (name == "equal")


# --- hostile notes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"shape": 5}', b'{"shape": [-128, 64]}', b'{"shape": [128, 65]}', b'{"shape": [1e9, 64]}',
     b'{"shape": [true, 8192]}', b'{"shape": [' + b"1," * 900 + b"8192]}", b"[" * 4000, b'{"shape": [128, 64]}' + b" " * 5000],
)  # fmt: skip
def test_a_note_that_lies_leaves_the_shape_unknown(note: bytes, library: Library, tmp_path: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.startswith("lm_head.weight.quant_state"))
        tensors[name] = torch.frombuffer(bytearray(note or b"\0"), dtype=torch.uint8)

    path = hacked(library("bnb4").path, tmp_path / "model", edit)
    head, _ = head_of(path)
    assert (head.shape, head.rows, head.form) == ((), None, "bitsandbytes 4-bit (nf4)")
    assert rules(path) == set()


@pytest.mark.parametrize("shape", [[128, 65], [127, 64], [-1, 64], [128, 64, 1], [1 << 60, 64], []])
def test_a_shape_that_does_not_fit_its_words_is_not_believed(shape: list[int], library: Library, tmp_path: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight_shape"] = torch.tensor(shape, dtype=torch.int64)

    path = hacked(library("ct-int4").path, tmp_path / "model", edit, hidden_size=1)
    assert head_of(path)[0].shape == ()
    assert head_of(path)[0].rows == ROWS


def test_any_leaves_of_any_dtype_and_shape_are_judged_without_a_word_of_complaint(tmp_path: Path) -> None:
    dice = random.Random(7)
    widths = {"I8": 1, "U8": 1, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I64": 8, "BOOL": 1}
    leaves = ["weight", *MAINS, *ORPHANS, "scale", "zero", "shape", "codebooks", "centroids", "s"]
    methods = ("compressed-tensors", "bitsandbytes", "fp8", "gptq", "awq", "modelopt", 5)
    for number in range(200):
        tensors: dict[str, Tensor] = {}
        for module in ("model.embed_tokens", "lm_head"):
            for leaf in dice.sample(leaves, dice.randint(1, 8)):
                dtype = dice.choice(list(widths))
                shape = tuple(dice.choice((0, 1, 2, 8, 32, 64)) for _ in range(dice.choice((0, 1, 2, 2, 2, 3))))
                tensors[f"{module}.{leaf}"] = Raw(dtype, shape, dice.randbytes(math.prod(shape) * widths[dtype]))
        asks = {"quant_method": dice.choice(methods), "load_in_4bit": True, "ignore": dice.choice((["lm_head"], 5, None)), "bits": 4}
        keys = {"tie_word_embeddings": dice.choice((True, False)), "quantization_config": asks}
        path = folder(tmp_path / str(number), {"config.json": config_json(**keys), WEIGHTS: safetensors(tensors)})
        report = audit(path, verify=dice.choice(("full", "sample", "headers")))
        assert report.totals.nbytes_wasted <= report.totals.nbytes_stored


def test_an_mlx_width_is_told_only_where_config_and_file_agree(library: Library, tmp_path: Path) -> None:
    path = library("mlx-4").path  # 4 bits in groups of 32: by its shapes it could be 2 bits in groups of 64
    for number, (keys, shape) in enumerate((({}, (128, 64)), ({"hidden_size": 128}, (128, 128)), ({"hidden_size": 96}, (128, 64)))):
        assert head_of(hacked(path, tmp_path / str(number), **keys))[0].shape == shape
    neither = hacked(path, tmp_path / "neither", hidden_size=96)
    content = json.loads((neither / "config.json").read_text())
    (neither / "config.json").write_text(json.dumps({**content, "quantization": {"bits": 5, "group_size": 64}}))
    assert head_of(neither)[0].shape == ()


@pytest.mark.parametrize("flag", [True, False])
def test_on_the_hub_a_few_pages_tell_the_same(flag: bool, online: Hub, tmp_path: Path) -> None:
    embed = numbers(1, 4096, 256)
    int8 = {HEAD: (embed * 128).astype(np.int8), "lm_head.weight_scale": np.full((4096, 1), 1 / 128, np.float32)}
    layers = {f"model.layers.{layer}.mlp.up_proj.weight": numbers(layer, 256, 256) for layer in range(8)}
    keys = {"vocab_size": 4096, "hidden_size": 256}
    files = {"config.json": config_json(tie_word_embeddings=flag, **keys), WEIGHTS: safetensors({EMBED: embed, **layers, **int8})}
    path = folder(tmp_path, files)
    online.add("org/model", path)
    report = audit("org/model")
    assert {finding.rule for finding in report.findings} == ({"one-sided-quantization"} if flag else set()) == rules(path)
    assert [tie.relation for tie in report.ties] == ["near"]
    assert report.cost.requests <= 8
    assert report.cost.bytes_read < 200_000


def test_seventy_thousand_tensors_are_looked_through_in_a_moment() -> None:
    from tieaudit.checkpoint import Storage, TensorRecord

    storage = Storage("f", "0", 0, 1 << 40)
    leaves = ("qweight", "qzeros", "scales", "g_idx")
    names = [f"model.layers.{layer}.mlp.experts.{expert}.{leaf}" for layer in range(70) for expert in range(250) for leaf in leaves]
    tensors = [TensorRecord(name, "I32", (8, 8), storage, 0, 256) for name in names]
    started = time.process_time()
    stored = StoredNames(tensors)
    for name in names[::4]:
        assert stored.exact(name.replace("qweight", "weight"))
    assert stored.find(HEAD) is None
    assert stored.orphans(HEAD) == ()
    assert time.process_time() - started < 15
