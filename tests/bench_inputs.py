"""The inputs of `bench.py`: checkpoints of real shapes, some of them sparse. `python tests/bench_inputs.py NAME FOLDER` builds one.

A process of its own, because the peak of a child's memory counts from that of its parent.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 4 << 20  # bytes made and written at once
Spec = tuple[str, str, tuple[int, ...]]
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def qwen2(layers: int, hidden: int, inner: int, vocab: int, heads: int) -> tuple[dict[str, Any], list[Spec]]:
    """(config, tensors) of a Qwen2ForCausalLM without head."""
    narrow = hidden // heads * 2
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 2,
        "vocab_size": vocab, "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    parts = {
        "self_attn.q_proj.weight": (hidden, hidden), "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (narrow, hidden), "self_attn.k_proj.bias": (narrow,),
        "self_attn.v_proj.weight": (narrow, hidden), "self_attn.v_proj.bias": (narrow,),
        "self_attn.o_proj.weight": (hidden, hidden), "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden), "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    specs: list[Spec] = [("model.embed_tokens.weight", "BF16", (vocab, hidden))]
    specs += [(f"model.layers.{layer}.{part}", "BF16", shape) for layer in range(layers) for part, shape in parts.items()]
    return config, [*specs, ("model.norm.weight", "BF16", (hidden,))]


def deepseek(layers: int = 61, dense: int = 3, experts: int = 200) -> Iterator[Spec]:
    """Names, dtypes and shapes as in DeepSeek-V3: FP8 weights with a scale beside each."""

    def quantised(name: str, rows: int, columns: int) -> Iterator[Spec]:
        yield name + ".weight", "F8_E4M3", (rows, columns)
        yield name + ".weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))

    yield "model.embed_tokens.weight", "BF16", (4096, 7168)
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        yield from ((stem + norm + "_layernorm.weight", "BF16", (7168,)) for norm in ("input", "post_attention"))
        yield from quantised(stem + "self_attn.q_a_proj", 1536, 7168)
        yield from quantised(stem + "self_attn.q_b_proj", 24_576, 1536)
        yield from quantised(stem + "self_attn.kv_a_proj_with_mqa", 576, 7168)
        yield from quantised(stem + "self_attn.kv_b_proj", 32_768, 512)
        yield from quantised(stem + "self_attn.o_proj", 7168, 16_384)
        if layer >= dense:
            yield stem + "mlp.gate.weight", "BF16", (256, 7168)
        for where in ["mlp."] if layer < dense else [*(f"mlp.experts.{expert}." for expert in range(experts)), "mlp.shared_experts."]:
            inner = 18_432 if layer < dense else 2048
            yield from quantised(stem + where + "gate_proj", inner, 7168)
            yield from quantised(stem + where + "up_proj", inner, 7168)
            yield from quantised(stem + where + "down_proj", 7168, inner)
    yield "model.norm.weight", "BF16", (7168,)
    yield "lm_head.weight", "BF16", (4096, 7168)


def nbytes(spec: Spec) -> int:
    count = BYTES[spec[1]]
    for dim in spec[2]:
        count *= dim
    return count


def write_model(folder: Path, config: dict[str, Any], specs: list[Spec], shards: int, *, sparse: bool = False) -> None:
    """One file, or shards of even size with an index. Bytes depend on the name; if not sparse, `lm_head` repeats the embedding.

    Sparse: tensors of layers are holes, with a few bytes in the middle, where a sample looks.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    share = sum(map(nbytes, specs)) / shards
    files: list[list[Spec]] = [[]]
    filled = 0
    for spec in specs:
        if files[-1] and filled >= share * len(files) and len(files) < shards:
            files.append([])
        files[-1].append(spec)
        filled += nbytes(spec)
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(len(files))] if shards > 1 else ["model.safetensors"]
    for name, content in zip(names, files, strict=True):
        header, at = {}, 0
        for spec in content:
            header[spec[0]] = {"dtype": spec[1], "shape": list(spec[2]), "data_offsets": [at, at + nbytes(spec)]}
            at += nbytes(spec)
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            start = file.tell()
            for spec in content:
                dice = random.Random(spec[0] if sparse or spec[0] != "lm_head.weight" else "model.embed_tokens.weight")
                begin, end = header[spec[0]]["data_offsets"]
                file.seek(start + begin)
                if sparse and ".layers." in spec[0]:
                    file.seek(start + (begin + end) // 2)
                    file.write(dice.randbytes(min(8, end - begin)))
                    continue
                for done in range(begin, end, BLOCK):
                    file.write(dice.randbytes(min(BLOCK, end - done)))
            file.truncate(start + at)
    if shards > 1:
        weight_map = {spec[0]: name for name, content in zip(names, files, strict=True) for spec in content}
        index = {"metadata": {"total_size": sum(map(nbytes, specs))}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_torch(folder: Path) -> None:
    import torch

    config, specs = qwen2(14, 896, 4864, 151_936, 14)
    state = {name: torch.randint(-9999, 9999, shape, dtype=torch.int16).view(torch.bfloat16) for name, _, shape in specs}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(state, folder / "pytorch_model.bin")


def write_gguf(folder: Path, *, layers: int = 18, hidden: int = 640, inner: int = 2048, vocab: int = 262_144) -> None:
    """Shapes and vocabulary as in Gemma 3 270M, tied by absence, in the types of a usual mix; random bytes stand for the weights."""
    import numpy as np
    from gguf import GGMLQuantizationType as Type
    from gguf import GGUFWriter
    from gguf.quants import quant_shape_to_byte_shape

    dice, words = np.random.default_rng(0), random.Random(0)
    matrices = {"attn_q": (1024, hidden), "attn_k": (256, hidden), "attn_v": (256, hidden), "attn_output": (hidden, 1024),
                "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}  # fmt: skip
    types = {"attn_output": Type.Q4_K, "ffn_down": Type.Q6_K, "attn_v": Type.Q8_0}
    norms = dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), hidden)
    norms |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), 256)
    folder.mkdir(parents=True)
    writer = GGUFWriter(folder / "gemma-3-270m-Q4_K_M.gguf", "gemma3")
    writer.add_block_count(layers)
    writer.add_embedding_length(hidden)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["".join(words.choices("abcdefghijklmnopqrstuvwxyz\u2581", k=words.randrange(1, 14))) for _ in range(vocab)])
    writer.add_token_scores([-float(n) for n in range(vocab)])
    writer.add_token_types([1] * vocab)

    def matrix(name: str, kind: Type, shape: tuple[int, int]) -> None:
        writer.add_tensor(name, dice.integers(0, 256, quant_shape_to_byte_shape(shape, kind), np.uint8), raw_dtype=kind)

    matrix("token_embd.weight", Type.Q8_0, (vocab, hidden))
    for layer in range(layers):
        for name, shape in matrices.items():
            matrix(f"blk.{layer}.{name}.weight", types.get(name, Type.Q5_0), shape)
        for name, width in norms.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", dice.standard_normal(width, np.float32))
    writer.add_tensor("output_norm.weight", dice.standard_normal(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_onnx(folder: Path, layers: int = 10, hidden: int = 768, vocab: int = 50_257) -> None:
    """GPT-2 with its weights inline, and one initializer for embedding and head."""
    import onnx
    from onnx import TensorProto, helper

    nodes, weights = [], []
    dice = random.Random(0)

    def weight(name: str, *shape: int) -> str:
        count = 4
        for dim in shape:
            count *= dim
        weights.append(helper.make_tensor(name, TensorProto.FLOAT, shape, dice.randbytes(count), raw=True))
        return name

    def apply(op: str, place: str, *inputs: str, **attributes: int) -> str:
        nodes.append(helper.make_node(op, inputs, [f"/{place}/{op}_output_0"], f"/{place}/{op}", **attributes))
        return f"/{place}/{op}_output_0"

    at = apply("Gather", "wte", weight("transformer.wte.weight", vocab, hidden), "input_ids")
    for layer in range(layers):
        stem = f"transformer/h.{layer}"
        for part, shapes in (("attn", ((hidden, 3 * hidden), (hidden, hidden))), ("mlp", ((hidden, 4 * hidden), (4 * hidden, hidden)))):
            before = at
            for number, shape in enumerate(shapes):
                place = f"{stem}/{part}/c_{number}"
                matrix, bias = weight(f"{place}.weight".replace("/", "."), *shape), weight(f"{place}.bias".replace("/", "."), shape[1])
                at = apply("Add", place, apply("MatMul", place, at, matrix), bias)
                for step in range(15):  # as many nodes as an export has: shapes, masks, the norm in its parts
                    at = apply("Identity", f"{place}/{step}", at)
            at = apply("Add", f"{stem}/{part}", before, at)
    swapped = apply("Transpose", "lm_head", "transformer.wte.weight")
    nodes.append(helper.make_node("MatMul", [at, swapped], ["logits"], "/lm_head/MatMul"))
    graph = helper.make_graph(
        nodes, "main_graph", [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", vocab])], weights,
    )  # fmt: skip
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph), str(folder / "model.onnx"))


def build(name: str, folder: Path) -> None:
    """Written beside its place and moved, so that a build that was stopped is not taken for whole."""
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    if name == "small":
        write_model(half, *qwen2(2, 64, 128, 512, 4), 1)
    elif name == "tied":
        config, specs = qwen2(12, 1536, 8960, 151_936, 12)
        write_model(half, config, [*specs, ("lm_head.weight", *specs[0][1:])], 4)
    elif name == "plain":
        write_model(half, *qwen2(17, 1536, 8960, 151_936, 12), 4)
    elif name == "many":
        config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "tie_word_embeddings": False,
                  "vocab_size": 4096, "hidden_size": 7168, "num_hidden_layers": 61}  # fmt: skip
        write_model(half, config, list(deepseek()), 62, sparse=True)
    elif name == "torch":
        write_torch(half)
    elif name == "onnx":
        write_onnx(half)
    elif name == "gguf":
        write_gguf(half)
    half.rename(folder)


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]))
