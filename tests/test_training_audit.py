"""Verdicts on training runs, end to end: copies that a run keeps, copies that drifted, what the optimizer shows, broken alias maps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from builders import EMBED, HEAD, config, folder, safetensors, tied, torch_zip, untied  # noqa: E402
from hub_server import Hub  # noqa: E402
from tieaudit import Report, audit  # noqa: E402
from training_folders import E, H, U, deepspeed, megatron, megatron_args, save, save_sharded, trained  # noqa: E402

NAMES = "unknown: judged by names and shapes (no config.json)"
ONE = "the optimizer has moments for one of them, as of one matrix"
EACH = "the optimizer has moments for each, as of matrices of their own"
UP = "model.layers.0.up.weight"
CONFIG_TIED = "tied: tie_word_embeddings is true in config.json"


def told(report: Report) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity.value, finding.message) for finding in report.findings]


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def sources(report: Report) -> list[str]:
    return [tie.claim_source for tie in report.ties]


def flipped(tensor: torch.Tensor, row: int) -> torch.Tensor:
    changed = tensor.clone()
    changed[row, 0] += 0.5
    return changed


# torch.distributed.checkpoint


def test_a_tied_model_in_a_distributed_checkpoint_is_healthy(tmp_path: Path) -> None:
    model, optimizer = trained(tied=True)
    report = audit(save(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    assert report.verdict == "note"
    assert told(report) == [
        (
            "TIE204",
            "note",
            f"lm_head.weight repeats embed_tokens.weight, as this format of a training run does (1,024 bytes; {NAMES}; {ONE})",
        ),
        ("TIE304", "note", ".metadata: 2,636 bytes of optimizer state in 9 tensors"),
    ]
    assert (report.ties[0].relation, report.ties[0].evidence, report.ties[0].saves_bytes) == ("equal", "proved", 0)
    assert sources(report) == [f"{NAMES}; {ONE}"]
    assert report.totals.nbytes_wasted == 0
    assert report.not_compared == ()


def test_an_untied_model_in_a_distributed_checkpoint(tmp_path: Path) -> None:
    model, optimizer = trained(tied=False)
    report = audit(save(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    assert codes(report) == ["TIE304"]
    assert sources(report) == [f"{NAMES}; {EACH}"]
    assert report.reason == "two separate matrices, and nothing claims that they are one"


def test_optimizers_that_are_keyed_by_name(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    for is_tied, words in ((True, "the optimizer has moments for embed_tokens.weight alone, as of one matrix"), (False, EACH)):
        model, optimizer = trained(tied=is_tied)
        weights, state = get_state_dict(model, optimizer)
        assert sources(audit(save(tmp_path / str(is_tied), {"app": {"model": weights, "optim": state}}))) == [f"{NAMES}; {words}"]


def test_accelerates_folders_are_healthy(tmp_path: Path) -> None:
    model, optimizer = trained(tied=True)
    save(tmp_path / "pytorch_model_fsdp_0", {"model": model.state_dict()})
    save(tmp_path / "optimizer_0", {"optimizer": optimizer.state_dict()})
    report = audit(tmp_path)
    assert codes(report) == ["TIE204", "TIE304"]
    assert sources(report) == [f"{NAMES}; {ONE}"]
    assert report.not_compared == ()


def test_the_claim_of_a_config_beside_a_distributed_checkpoint(tmp_path: Path) -> None:
    weights = {EMBED: E, UP: U, HEAD: E.clone()}
    assert codes(audit(folder(save(tmp_path / "equal", weights), {"config.json": tied()}))) == ["TIE204"]
    drifted = audit(folder(save(tmp_path / "drifted", {**weights, HEAD: flipped(E, 5)}), {"config.json": tied()}))
    assert told(drifted) == [
        (
            "TIE808",
            "error",
            f"{HEAD} differs from {EMBED}, and both are copies of one matrix ({CONFIG_TIED}): row 5 differs, of 32",
        )
    ]
    assert drifted.verdict == "error"
    assert codes(audit(folder(save(tmp_path / "apart", {**weights, HEAD: H}), {"config.json": untied()}))) == []
    alone = {EMBED: E, UP: U}
    assert codes(audit(folder(save(tmp_path / "alone", alone), {"config.json": tied()}))) == []
    assert codes(audit(folder(save(tmp_path / "lost", alone), {"config.json": untied()}))) == ["TIE003"]


def test_shards_of_ranks_are_compared_byte_by_byte(tmp_path: Path) -> None:
    wide = torch.arange(65 * 8, dtype=torch.float32).reshape(65, 8)
    report = audit(save_sharded(tmp_path / "equal", 4, {EMBED: (wide, 0), HEAD: (wide.clone(), 0)}))
    assert told(report) == [("TIE204", "note", f"{HEAD} repeats {EMBED}, as this format of a training run does (2,080 bytes; {NAMES})")]
    assert report.ties[0].evidence == "proved"
    path = save_sharded(tmp_path / "drifted", 4, {EMBED: (wide, 0), HEAD: (flipped(wide, 20), 0)})
    report = audit(folder(path, {"config.json": config(tie_word_embeddings=True, vocab_size=65)}))
    assert [message for _, _, message in told(report)] == [
        f"{HEAD} differs from {EMBED}, and both are copies of one matrix ({CONFIG_TIED}): row 20 differs, of 65"
    ]
    assert audit(path, verify="sample").findings[0].code == "TIE808"
    assert audit(path, verify="headers").findings == ()


def test_padding_rows_that_differ_are_a_warning(tmp_path: Path) -> None:
    report = audit(folder(save(tmp_path, {EMBED: E, HEAD: flipped(E, 31)}), {"config.json": tied()}))
    assert [(code, severity) for code, severity, _ in told(report)] == [("TIE808", "warning")]


def test_a_distributed_checkpoint_with_a_file_too_few(tmp_path: Path) -> None:
    save_sharded(tmp_path, 2, {EMBED: (E, 0), HEAD: (E.clone(), 0)})
    (tmp_path / "__1_0.distcp").unlink()
    report = audit(tmp_path)
    assert told(report) == [("TIE403", "error", "1 shard is missing, by .metadata: __1_0.distcp")]
    assert [(skip.subject, skip.reason) for skip in report.not_compared] == [
        (f"{EMBED} and 1 more", "lies in __1_0.distcp, which is not there"),
        (f"{EMBED} and {HEAD}", f"{EMBED} lies in __1_0.distcp, which is not there"),
    ]


def test_flat_parameters_are_never_called_clean(tmp_path: Path) -> None:
    flat = {"_fsdp_wrapped_module._flat_param": torch.ones(400)}
    for path in (save(tmp_path / "dcp", flat), folder(tmp_path / "file", {"pytorch_model.bin": torch_zip(flat)})):
        report = audit(path)
        assert (report.verdict, report.findings) == ("incomplete", ())
        assert report.skipped[0].reason.startswith("flat parameters of FSDP hide the names of the weights")


def test_a_release_beside_a_distributed_checkpoint_is_judged_first(tmp_path: Path) -> None:
    save(tmp_path, {EMBED: E, HEAD: E.clone()})
    report = audit(folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: E.numpy()})}))
    assert report.formats == ("safetensors", "torch-dcp")
    assert codes(report) == ["TIE204"]


# DeepSpeed


def test_zero_2_is_healthy(tmp_path: Path) -> None:
    report = audit(deepspeed(tmp_path))
    assert told(report) == [("TIE304", "note", "global_step100: 3,200 bytes of optimizer state in 2 tensors")]
    assert report.reason == "tied: both names are one storage"


def test_zero_3_has_no_empty_tensors(tmp_path: Path) -> None:
    report = audit(deepspeed(tmp_path, stage=3))
    assert codes(report) == ["TIE304"]
    assert report.totals.parameters_stored == 512
    assert [skip.subject for skip in report.not_compared] == [f"{EMBED} and 2 more"]
    assert report.skipped == ()


def test_zero_3_untied_is_not_compared(tmp_path: Path) -> None:
    report = audit(deepspeed(tmp_path, stage=3, module={EMBED: E, UP: U, HEAD: H}, shared={}))
    assert codes(report) == ["TIE304"]
    assert report.reason == f"both {EMBED} and {HEAD} are stored; whether they are one matrix was not compared"
    assert [skip.subject for skip in report.not_compared] == [f"{EMBED} and 2 more", f"{EMBED} and {HEAD}"]


def test_an_alias_with_a_shape_of_its_own_is_an_error(tmp_path: Path) -> None:
    small = {EMBED: E, "model.layers.0.q.weight": U[:8], "model.norm.weight": U[0], HEAD: E}
    everything = dict.fromkeys(list(small)[1:], EMBED)
    sizes = {name: tensor.shape for name, tensor in small.items()}
    report = audit(deepspeed(tmp_path, stage=3, module=small, shapes=sizes, shared=everything))
    assert told(report)[0] == (
        "TIE006",
        "error",
        (
            "global_step100/zero_pp_rank_0_mp_rank_00_model_states.pt: model.layers.0.q.weight (8 × 8), model.norm.weight (8) are noted as "
            f"{EMBED} (32 × 8), whose shape is another: who follows the note overwrites what was trained"
        ),
    )
    assert report.findings[0].cause == "DeepSpeed of spring 2023, which took every placeholder of ZeRO-3 for one tensor"


def test_an_alias_of_nothing_is_an_error(tmp_path: Path) -> None:
    report = audit(deepspeed(tmp_path, stage=3, shapes={UP: U.shape}, shared={HEAD: EMBED, EMBED: "gone.weight"}))
    assert told(report)[0] == (
        "TIE004",
        "error",
        (
            f"global_step100/zero_pp_rank_0_mp_rank_00_model_states.pt: {HEAD} is noted as {EMBED}, {EMBED} is noted as gone.weight, and "
            "neither name is stored"
        ),
    )


def test_a_trainers_folder_with_deepspeed_inside(tmp_path: Path) -> None:
    deepspeed(tmp_path)
    files = {"config.json": tied(), "model.safetensors": safetensors({EMBED: E.numpy()}), "scheduler.pt": torch_zip({"last_lr": 1.0})}
    report = audit(folder(tmp_path, files))
    assert report.formats[:2] == ("safetensors", "deepspeed")
    assert codes(report) == ["TIE304"]
    assert report.not_compared == ()


# Megatron


def stages(first: torch.Tensor, head: torch.Tensor | None, ranks: int = 1) -> dict[str, dict[str, torch.Tensor]]:
    fc, name = "decoder.layers.0.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"
    both = ({name: first, fc: U}, {fc: U + 2} if head is None else {fc: U + 2, "output_layer.weight": head})
    return {
        f"mp_rank_{rank:02d}_{stage:03d}": {key: tensor + rank for key, tensor in both[stage].items()}
        for rank in range(ranks)
        for stage in range(2)
    }


FIRST, LAST = "stage0.embedding.word_embeddings.weight", "stage1.output_layer.weight"
ARGS_TIED = "tied: untie_embeddings_and_output_weights is false in the run's args"


def test_the_copy_on_the_last_stage_is_expected(tmp_path: Path) -> None:
    report = audit(megatron(tmp_path, stages(E, E.clone(), 2), megatron_args(untied=False, tensor=2, pipeline=2)))
    assert told(report) == [
        (
            "TIE204",
            "note",
            f"{LAST} repeats {FIRST} on each of 2 ranks, as this format of a training run does (2,048 bytes; {ARGS_TIED})",
        )
    ]
    assert (report.totals.nbytes_wasted, report.ties[0].saves_bytes) == (0, 0)


def test_a_copy_that_drifted_is_an_error_on_its_rank(tmp_path: Path) -> None:
    path = megatron(tmp_path, stages(E, E.clone(), 2), megatron_args(untied=False, tensor=2, pipeline=2))
    other = megatron(tmp_path / "other", stages(E, flipped(E, 3), 2), megatron_args(untied=False, tensor=2, pipeline=2))
    rank = "iter_0000100/mp_rank_01_001/model_optim_rng.pt"
    shutil.copyfile(other / rank, path / rank)
    shutil.rmtree(other)
    report = audit(path)
    assert [finding for finding in told(report) if finding[1] == "error"] == [
        (
            "TIE808",
            "error",
            f"iter_0000100/mp_rank_01: {LAST} differs from {FIRST}, and both are copies of one matrix ({ARGS_TIED}): row 3 differs, of 32",
        )
    ]
    assert codes(report) == ["TIE808", "TIE204"]


def test_each_copy_has_an_optimizer_of_its_own(tmp_path: Path) -> None:
    state = {"optimizer": {"state": {0: {"exp_avg": torch.ones(32, 8)}}, "param_groups": []}}
    report = audit(megatron(tmp_path, stages(E, E.clone()), megatron_args(untied=False, pipeline=2), **state))
    assert sources(report) == [ARGS_TIED]
    assert codes(report) == ["TIE204", "TIE304"]


def test_the_optimizers_of_all_ranks_are_one_note(tmp_path: Path) -> None:
    state = {"optimizer": {"state": {0: {"exp_avg": torch.ones(300)}}, "param_groups": []}}
    report = audit(megatron(tmp_path, stages(E, H, 3), megatron_args(untied=True, tensor=3, pipeline=2), **state))
    assert told(report) == [("TIE304", "note", "iter_0000100/mp_rank_00 and 2 more ranks: 7,200 bytes of optimizer state in 6 tensors")]


def test_untied_stages_are_healthy(tmp_path: Path) -> None:
    report = audit(megatron(tmp_path, stages(E, H), megatron_args(untied=True, pipeline=2)))
    assert (report.verdict, report.reason) == ("ok", "untied: two separate matrices, as the run has them")


def test_a_head_that_is_not_stored(tmp_path: Path) -> None:
    untied_run = audit(megatron(tmp_path / "a", stages(E, None), megatron_args(untied=True, pipeline=2)))
    assert told(untied_run) == [
        (
            "TIE003",
            "error",
            (
                "stage1.output_layer.weight is not stored and Megatron does not load the checkpoint without it "
                "(untied: untie_embeddings_and_output_weights is true in the run's args)"
            ),
        )
    ]
    tied_run = audit(megatron(tmp_path / "b", {"mp_rank_00": stages(E, None)["mp_rank_00_000"]}, megatron_args(untied=False)))
    assert (tied_run.verdict, tied_run.reason) == ("ok", "tied: one matrix is stored, and the head reads it")


def test_slices_are_no_row_mismatch(tmp_path: Path) -> None:
    path = megatron(tmp_path, stages(E, E.clone(), 2), megatron_args(untied=False, tensor=2, pipeline=2))
    report = audit(folder(path, {"config.json": config(vocab_size=64, tie_word_embeddings=True)}))
    assert codes(report) == ["TIE204"]


def test_a_missing_stage(tmp_path: Path) -> None:
    path = megatron(tmp_path, stages(E, E), megatron_args(untied=False, pipeline=2))
    shutil.rmtree(path / "iter_0000100" / "mp_rank_00_001")
    assert told(audit(path)) == [
        ("TIE403", "error", "1 shard is missing, by the numbering of the others: iter_0000100/mp_rank_00_001/model_optim_rng.pt")
    ]


# ordinary training checkpoints


def test_what_an_optimizer_shows_of_two_copies_in_one_file(tmp_path: Path) -> None:
    model, optimizer = trained(tied=True)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = audit(folder(tmp_path / "one", {"last.pt": torch_zip({"model": weights, "optimizer": optimizer.state_dict()})}))
    assert sources(report) == [f"{NAMES}; {ONE}"]
    assert codes(report) == ["TIE002", "TIE304"]
    model, optimizer = trained(tied=False)
    report = audit(folder(tmp_path / "two", {"last.pt": torch_zip({"model": model.state_dict(), "optimizer": optimizer.state_dict()})}))
    assert sources(report) == [f"{NAMES}; {EACH}"]
    assert codes(report) == ["TIE304"]


def test_other_matrices_of_the_same_shape_are_counted_too(tmp_path: Path) -> None:
    weights = {EMBED: E, HEAD: E.clone(), "model.positions.weight": U}
    for trained_matrices, words in ((2, ONE), (3, EACH)):
        state = {number: {"exp_avg": torch.ones(32, 8)} for number in range(trained_matrices)}
        content = {"model": weights, "optimizer": {"state": state, "param_groups": []}}
        path = folder(tmp_path / str(trained_matrices), {"last.pt": torch_zip(content)})
        assert sources(audit(path)) == [f"{NAMES}; {words}"]


def test_an_optimizer_that_shows_nothing_clear_is_not_quoted(tmp_path: Path) -> None:
    model, _ = trained(tied=True)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    others = (
        {"state": {}, "param_groups": []},
        {"state": {0: {"exp_avg": torch.ones(256)}}, "param_groups": []},
        {"state": {"lm_head.weight": {"exp_avg": torch.ones(32, 8)}}, "param_groups": []},  # an embedding that was frozen
    )
    for number, state in enumerate(others):
        report = audit(folder(tmp_path / str(number), {"last.pt": torch_zip({"model": weights, "optimizer": state})}))
        assert sources(report) == [NAMES]


# the same on the Hub


def test_runs_on_the_hub_get_the_findings_that_they_get_on_disk(online: Hub, tmp_path: Path) -> None:
    model, optimizer = trained(tied=True)
    pair = {EMBED: (E, 0), UP: (U, 0), HEAD: (flipped(E, 3), 0)}
    runs = {
        "dcp": save(tmp_path / "dcp", {"model": model.state_dict(), "optimizer": optimizer.state_dict()}),
        "sharded": folder(save_sharded(tmp_path / "sharded", 4, pair), {"config.json": tied()}),
        "deepspeed": deepspeed(tmp_path / "deepspeed", stage=3),
        "megatron": megatron(tmp_path / "megatron", stages(E, E.clone(), 2), megatron_args(untied=False, tensor=2, pipeline=2)),
    }
    for name, path in runs.items():
        online.add(f"org/{name}", path)
        online.reset()
        there, here = audit(f"org/{name}", verify="full"), audit(path, verify="full")
        assert told(there) == told(here)
        assert [(tie.claim_source, tie.relation, tie.evidence) for tie in there.ties] == [
            (tie.claim_source, tie.relation, tie.evidence) for tie in here.ties
        ]
        assert (there.totals, there.files, there.skipped) == (here.totals, here.files, here.skipped)
        assert there.cost.requests <= 30
