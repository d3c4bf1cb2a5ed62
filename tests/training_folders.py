"""This file writes folders of training runs: distributed checkpoints by torch itself, DeepSpeed and Megatron as their sources do."""

from __future__ import annotations

import argparse
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from builders import folder, matrix, torch_tensor, torch_zip
from tieaudit.checkpoint import Checkpoint, Edition, TensorRecord
from tieaudit.loaders import sharded
from tieaudit.sources.local import LocalFolder

E, H, U = (torch_tensor(matrix(seed)) for seed in (1, 2, 3))  # 32 × 8 each
Tensors = Mapping[str, torch.Tensor]


def checkpoint(path: Path, only: str | None = None) -> Checkpoint:
    opened = LocalFolder(path)
    try:
        return sharded.load(opened, "target", only)
    finally:
        opened.close()


def the_edition(path: Path) -> Edition:
    (edition,) = checkpoint(path).editions
    return edition


def raw(path: Path, record: TensorRecord) -> bytes:
    """The record's bytes, as the files hold them."""
    pieces = record.storage.pieces or ((record.file, record.file_offset or 0, record.nbytes),)
    return b"".join((path / file).read_bytes()[begin : begin + n] for file, begin, n in pieces)


class Model(torch.nn.Module):
    """Two matrices that are one or not, with a layer between them."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed_tokens = torch.nn.Embedding(32, 8)
        self.up = torch.nn.Linear(8, 8)
        self.lm_head = torch.nn.Linear(8, 32, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.up(self.embed_tokens(ids)))


def trained(*, tied: bool, steps: int = 1) -> tuple[Model, torch.optim.Optimizer]:
    model = Model(tied=tied)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.arange(8)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def save(path: Path, state: Mapping[str, Any]) -> Path:
    """What one process saves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is but one process
        dcp.save(dict(state), checkpoint_id=str(path))
    return path


def load(path: Path, into: dict[str, Any]) -> dict[str, Any]:
    """What torch itself reads back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(into, checkpoint_id=str(path), no_dist=True)
    return into


def save_sharded(path: Path, world: int, tensors: Mapping[str, tuple[torch.Tensor, int]]) -> Path:
    """What `world` ranks save of tensors that are sharded along a dimension, by torch's planner and writer, rank after rank."""
    plans, planners = [], []
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (world,))
            state = {
                name: DTensor.from_local(_part(full, world, rank, dim), mesh, [Shard(dim)], shape=full.shape, stride=full.stride())
                for name, (full, dim) in tensors.items()
            }
            planner = DefaultSavePlanner()
            planner.set_up_planner({"model": state}, is_coordinator=rank == 0)
            planners.append(planner)
            plans.append(planner.create_local_plan())
        finally:
            dist.destroy_process_group()
    writer = FileSystemWriter(str(path))
    writer.reset(str(path))
    writer.set_up_storage_writer(is_coordinator=True)
    plans, metadata = planners[0].create_global_plan([writer.prepare_local_plan(plan) for plan in plans])
    finished = [(planner, planner.finish_plan(plan)) for planner, plan in zip(planners, writer.prepare_global_plan(plans), strict=True)]
    writer.finish(metadata, [writer.write_data(plan, planner).value() for planner, plan in finished])
    return path


def _part(full: torch.Tensor, world: int, rank: int, dim: int) -> torch.Tensor:
    parts = torch.chunk(full, world, dim)
    return (parts[rank] if rank < len(parts) else full.narrow(dim, 0, 0)).contiguous()


def rewrite(path: Path, change: Callable[[Any], object]) -> Path:
    """The checkpoint with its `Metadata` changed in place."""
    file = path / ".metadata"
    metadata = pickle.loads(file.read_bytes())  # noqa: S301  written a moment ago
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))
    return path


def deepspeed(
    path: Path,
    *,
    stage: int = 2,
    module: Tensors | None = None,
    shapes: Mapping[str, torch.Size] | None = None,
    shared: Mapping[str, str] | None = None,
    ranks: int = 2,
    tag: str = "global_step100",
    latest: str | None = None,
) -> Path:
    """A run folder with `latest` and the folder of one tag (deepspeed/runtime/engine.py, `_save_checkpoint`)."""
    weights = {"model.embed_tokens.weight": E, "model.layers.0.up.weight": U, "lm_head.weight": E} if module is None else module
    holders = {"lm_head.weight": "model.embed_tokens.weight"} if shared is None else shared
    sizes = {name: tensor.shape for name, tensor in weights.items() if name not in holders} if shapes is None else shapes
    stored = {name: torch.empty(0, dtype=torch.bfloat16) for name in weights} if stage == 3 else weights
    model = {
        "module": OrderedDict(stored),
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [OrderedDict(sizes)],
        "frozen_param_shapes": None,
        "shared_params": dict(holders),
        "lr_scheduler": None,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "global_steps": 100,
        "ds_version": "0.17.0",
    }
    flat = {"zero_stage": stage, "partition_count": ranks, "fp32_flat_groups": [torch.ones(400)]}
    names = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(ranks)] if stage == 3 else ["mp_rank_00_model_states.pt"]
    files = {f"{tag}/{name}": torch_zip(model) for name in names}
    for rank in range(ranks):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        files[f"{tag}/{name}"] = torch_zip({"optimizer_state_dict": flat, "ds_version": "0.17.0"})
    return folder(path, {**files, "latest": (tag if latest is None else latest).encode()})


def megatron_args(*, untied: bool | None, tensor: int = 1, pipeline: int = 1, **more: object) -> argparse.Namespace:
    flag = {} if untied is None else {"untie_embeddings_and_output_weights": untied}
    sizes = {"padded_vocab_size": 32 * tensor, "vocab_size": 30, "make_vocab_size_divisible_by": 32}
    return argparse.Namespace(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, **sizes, **flag, **more)


def megatron(
    path: Path,
    stages: Mapping[str, Mapping[str, Any]],
    args: argparse.Namespace | None,
    *,
    iteration: str = "iter_0000100",
    marker: str = "100",
    **more: object,
) -> Path:
    """A run folder: {name of a rank's folder: its model}, saved as megatron/training/checkpointing.py does."""
    common = {"checkpoint_version": 3.0, "iteration": 100, **({} if args is None else {"args": args}), **more}
    files = {f"{iteration}/{rank}/model_optim_rng.pt": torch_zip({**common, "model": OrderedDict(model)}) for rank, model in stages.items()}
    return folder(path, {**files, "latest_checkpointed_iteration.txt": marker.encode()})
