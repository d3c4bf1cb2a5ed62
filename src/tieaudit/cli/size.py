"""`tieaudit size TARGET…`: where the bytes go, and what the head costs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .screen import Bar, columns

if TYPE_CHECKING:
    from ..footprint import Setup
    from ..size import Size

OPTIMIZERS = ["adam", "adamw", "sgd", "sgd-momentum", "adafactor", "8bit-adam"]


@click.command("size", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer.")
@click.option("--top", type=click.IntRange(0, 10_000), default=0, metavar="N", help="List the N largest tensors too.")
@click.option("--verify", type=click.Choice(["headers", "sample", "full"]), default=None, show_default="full; over a network sample",
              help="What may be read to find repeats: without a comparison waste is not known.")  # fmt: skip
@click.option("--config-only", is_flag=True, help="By config.json alone, without weights: a folder, a JSON file or a Hub id.")
@click.option("--meta", is_flag=True, help="With --config-only: let transformers build the model without weights, for any of its classes.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adam", show_default=True, help="Whose state is counted in training.")
@click.option("--master-weights", is_flag=True, help="Count FP32 copies of the weights in training too.")
@click.option("--zero", type=click.IntRange(0, 3), default=0, show_default=True, metavar="N", help="ZeRO stage of the training.")
@click.option(
    "--dp", type=click.IntRange(1, 1 << 20), default=1, show_default=True, metavar="N", help="Data-parallel ranks that ZeRO splits over."
)
@click.option("--tp", type=click.IntRange(1, 1 << 20), default=1, show_default=True, metavar="N", help="Tensor-parallel ranks.")
@click.option("--pad-to", type=click.IntRange(1, 1 << 20), default=None, show_default="128 with --tp", metavar="N",
              help="Fill the vocabulary up to a multiple of N times --tp.")  # fmt: skip
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a Hub id.")
@click.option("--subfolder", metavar="PATH", help="Folder or file inside the repository of a Hub id.")
@click.option("--offline", is_flag=True, help="Use what the local Hub cache holds of a Hub id; no network.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="SECONDS",
              help="For one read over the network, all its tries included.")  # fmt: skip
@click.pass_context
def size_command(
    ctx: click.Context, targets: tuple[str, ...], form: str, top: int, verify: str | None, config_only: bool, meta: bool, optimizer: str,
    master_weights: bool, zero: int, dp: int, tp: int, pad_to: int | None, revision: str | None, subfolder: str | None, offline: bool,
    timeout: float,
) -> None:  # fmt: skip
    """Where the bytes of the checkpoint at TARGET go: by component, layer, dtype and file, stored and wasted; the share of embedding and
    head; and what tying or untying them saves or costs in training. Several targets give a table. Exit codes: 0, or 2 if a target gave
    no answer or could not be read as a whole."""
    from ..errors import TieauditError
    from ..footprint import Setup

    if meta and not config_only:
        raise click.UsageError("--meta is for --config-only.", ctx)
    if config_only and verify is not None:
        raise click.UsageError("--verify is for weights, and --config-only reads none.", ctx)
    access = {"revision": revision, "subfolder": subfolder, "offline": offline, "timeout": timeout}
    bar = Bar(sys.stderr)
    sizes: list[Size] = []
    errors: list[tuple[str, str]] = []
    try:
        setup = Setup(zero=zero, dp=dp, tp=tp, pad_to=pad_to, optimizer=optimizer, master=master_weights)

        def one(target: str) -> Size:
            if config_only:
                return _of_config(target, setup, top, meta, access)
            return _of_weights(target, setup, top, verify, bar, access)

        for target in targets:
            try:
                sizes.append(one(target))
            except TieauditError as error:
                if len(targets) == 1:
                    raise
                errors.append((target, str(error)))
            finally:
                bar.clear()
    except TieauditError as error:
        raise click.ClickException(str(error)) from None
    click.echo(_rendered(sizes, errors, form, several=len(targets) > 1), nl=False)
    ctx.exit(2 if errors or any(size.partial for size in sizes) else 0)


def _of_weights(target: str, setup: Setup, top: int, verify: str | None, bar: Bar, access: dict[str, Any]) -> Size:
    from ..size import measure
    from ..stages import audit

    return measure(audit(target, verify=verify, progress=bar.show, **access), setup, top=top)


def _of_config(target: str, setup: Setup, top: int, meta: bool, access: dict[str, Any]) -> Size:
    from .. import blueprint
    from ..size import measure

    report, note = blueprint.read(target, meta=meta, **access)
    return measure(report, setup, top=top, source="meta" if meta else "config", note=note)


def _rendered(sizes: list[Size], errors: list[tuple[str, str]], form: str, *, several: bool) -> str:
    if form == "json":
        from ..reporters import size_json

        return size_json.render_several(sizes, errors) if several else size_json.render(sizes[0])
    from ..reporters import size_text

    width = columns(sys.stdout) if sys.stdout.isatty() else None
    return size_text.render_table(sizes, errors, width) if several else size_text.render(sizes[0], width)
