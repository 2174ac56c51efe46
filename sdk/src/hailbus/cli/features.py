"""`hailbus features`: what `kafka-features` shows and does, with its flag names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from hailbus._transport import cluster_requests
from hailbus._transport.kafka_admin import reason_of, refused
from hailbus.cli.common import Json, out, run
from hailbus.cli.kafka import AnyBootstrap, admin_at, brokers_of
from hailbus.errors import ConfigurationError

__all__ = ["METADATA_LEVELS", "features", "levels_of_release"]

features = typer.Typer(help="Feature levels of the cluster: describe, upgrade or downgrade them.", no_args_is_help=True)

TIMEOUT_MS = 60_000
MAX_LEVEL = 32_767
METADATA_VERSION: Final = "metadata.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

# Apache Kafka 4.3's MetadataVersion: the releases with their number of versions; the first version is 3.3-IV3, level 7.
_RELEASES: Final = (
    *(("3.3", 3, 3), ("3.4", 0, 0), ("3.5", 0, 2), ("3.6", 0, 2), ("3.7", 0, 4), ("3.8", 0, 0), ("3.9", 0, 0)),
    *(("4.0", 0, 3), ("4.1", 0, 1), ("4.2", 0, 1), ("4.3", 0, 0)),
)
METADATA_LEVELS: Final[Mapping[str, int]] = {
    f"{release}-IV{number}": level
    for level, (release, number) in enumerate(
        ((release, number) for release, first, last in _RELEASES for number in range(first, last + 1)), start=7
    )
}
"""Levels of `metadata.version` by their names."""

_DEFAULTS: Final = (
    ("kraft.version", 1, "3.9-IV0"),
    ("group.version", 1, "4.0-IV0"),
    ("transaction.version", 2, "4.0-IV2"),
    ("eligible.leader.replicas.version", 1, "4.1-IV0"),
    ("share.version", 1, "4.2-IV0"),
    ("streams.version", 1, "4.2-IV1"),
)
"""Feature, its level in a new cluster, and the first metadata version with that level; before it the level is 0."""

Metadata = Annotated[str | None, typer.Option("--metadata", help="A metadata version, like 4.3-IV0 or 4.3.")]
Release = Annotated[
    str | None,
    typer.Option("--release-version", help="Set all features to the levels of a release, like 4.3-IV0 or 4.3."),
]
Feature = Annotated[
    list[str] | None, typer.Option("--feature", help="feature=level, like metadata.version=30; repeatable.")
]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Even if the downgrade irreversibly destroys metadata.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate the change, but do not make it.")]


@features.callback()
def _before(ctx: typer.Context, bootstrap_server: AnyBootstrap = None) -> None:
    ctx.obj = bootstrap_server


@features.command("describe")
def describe(
    ctx: typer.Context,
    bootstrap_server: AnyBootstrap = None,
    node_id: Annotated[int | None, typer.Option("--node-id", min=0, help="The broker to ask; any by default.")] = None,
    json: Json = False,
) -> None:
    """Describe supported and finalized levels of each feature."""

    async def main() -> None:
        async with admin_at(brokers_of(ctx, bootstrap_server)) as admin:
            if node_id is not None and node_id not in (known := await admin.nodes()):
                message = f"--node-id {node_id} is no live broker; the cluster has {', '.join(map(str, sorted(known)))}"
                raise ConfigurationError(message)
            answer = await admin.ask(cluster_requests.api_versions(), node_id)
        refused(answer.error_code, "the features cannot be described")
        found = cluster_requests.features_in(answer)
        for name, (low, high) in sorted(found.supported.items()):
            values: dict[str, int] = {
                "SupportedMinVersion": low,
                "SupportedMaxVersion": high,
                "FinalizedVersionLevel": found.finalized.get(name, 0),
            }
            if json:
                out({"Feature": name, **values, "Epoch": found.epoch})
                continue
            shown = " ".join(f"{title}: {_level(name, level):<15}" for title, level in values.items())
            typer.echo(f"Feature: {name:<40} {shown} Epoch: {'-' if found.epoch is None else found.epoch}")

    run(main())


@features.command("upgrade")
def upgrade(
    ctx: typer.Context,
    bootstrap_server: AnyBootstrap = None,
    metadata: Metadata = None,
    release_version: Release = None,
    feature: Feature = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Raise the levels of features: all of them, or none if the cluster refuses one."""

    async def main() -> None:
        levels = _wanted("upgrade", metadata, release_version, feature)
        await _update(brokers_of(ctx, bootstrap_server), "upgrade", levels, UPGRADE, is_dry=dry_run, as_json=json)

    run(main())


@features.command("downgrade")
def downgrade(
    ctx: typer.Context,
    bootstrap_server: AnyBootstrap = None,
    metadata: Metadata = None,
    release_version: Release = None,
    feature: Feature = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Lower the levels of features: all of them, or none if the cluster refuses one."""

    async def main() -> None:
        levels = _wanted("downgrade", metadata, release_version, feature)
        kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
        await _update(brokers_of(ctx, bootstrap_server), "downgrade", levels, kind, is_dry=dry_run, as_json=json)

    run(main())


@features.command("disable")
def disable(
    ctx: typer.Context,
    bootstrap_server: AnyBootstrap = None,
    feature: Annotated[list[str] | None, typer.Option("--feature", help="Its name; repeatable.")] = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Set features to level 0."""

    async def main() -> None:
        levels: dict[str, int] = {}
        for name in feature or ():
            _add(levels, name, 0)
        if not levels:
            message = "name at least one --feature to disable"
            raise ConfigurationError(message)
        kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
        await _update(brokers_of(ctx, bootstrap_server), "disable", levels, kind, is_dry=dry_run, as_json=json)

    run(main())


# ------------------------------------------------------------------------------------------------------ levels


def levels_of_release(version: str, option: str = "--release-version") -> dict[str, int]:
    """Return the level of each feature in a new cluster of a release.

    Raises:
        ConfigurationError: Apache Kafka 4.3 knows no such release.
    """
    newest = _metadata_level(version, option)
    found = {METADATA_VERSION: newest}
    for name, level, since in _DEFAULTS:
        found[name] = level if newest >= METADATA_LEVELS[since] else 0
    return found


def _metadata_level(version: str, option: str) -> int:
    """Return the level of a version like `4.3-IV0`, or the last one of a release like `4.3`."""
    levels = [level for name, level in METADATA_LEVELS.items() if version in {name, name.partition("-")[0]}]
    if not levels:
        names = list(METADATA_LEVELS)
        message = f"{option} {version!r} is unknown: give a version from {names[0]} to {names[-1]}"
        raise ConfigurationError(message)
    return max(levels)


def _level(feature: str, level: int) -> str:
    """Return a level as text; those of `metadata.version` have names."""
    if feature != METADATA_VERSION or not level:
        return str(level)
    return next((name for name, known in METADATA_LEVELS.items() if known == level), f"UNKNOWN {level}")


def _wanted(operation: str, metadata: str | None, release: str | None, feature: list[str] | None) -> dict[str, int]:
    """Return the level of each feature that the options name.

    Raises:
        ConfigurationError: They name none, one of them twice, or something that is no level.
    """
    if release is not None:
        if metadata is not None or feature:
            message = "--release-version sets all features: do not combine it with --metadata or --feature"
            raise ConfigurationError(message)
        return levels_of_release(release)
    found: dict[str, int] = {}
    if metadata is not None:
        found[METADATA_VERSION] = _metadata_level(metadata, "--metadata")
    for pair in feature or ():
        name, equals, level = pair.partition("=")
        if not equals or not name or not level.isdecimal() or int(level) > MAX_LEVEL:
            message = f"--feature {pair!r} is not like metadata.version=30"
            raise ConfigurationError(message)
        _add(found, name, int(level))
    if not found:
        message = f"name at least one feature to {operation}: --feature, --metadata or --release-version"
        raise ConfigurationError(message)
    return found


def _add(levels: dict[str, int], name: str, level: int) -> None:
    if name in levels:
        message = f"feature {name} is named twice"
        raise ConfigurationError(message)
    levels[name] = level


# ------------------------------------------------------------------------------------------------------ update


async def _update(
    bootstrap: str, operation: str, levels: Mapping[str, int], kind: int, *, is_dry: bool, as_json: bool
) -> None:
    request = cluster_requests.update_features(levels, kind, is_dry=is_dry, timeout_ms=TIMEOUT_MS)
    async with admin_at(bootstrap) as admin:
        answer = await admin.ask(request)
    reasons = {name: reason_of(code, text) for name, (code, text) in _results(answer, levels).items() if code}
    could_not, has_been = ("Can not", "can be") if is_dry else ("Could not", "was")
    for name in sorted(levels):
        target = "" if operation == "disable" else f" to {levels[name]}"
        if as_json:
            out({"Feature": name, "Level": levels[name], "DryRun": is_dry, "Error": reasons.get(name)})
        elif name in reasons:
            typer.echo(f"{could_not} {operation} {name}{target}. {reasons[name]}", err=True)
        else:
            typer.echo(f"{name} {has_been} {operation}d{target}.")
    if reasons:
        if not as_json:
            typer.echo(f"{len(reasons)} out of {len(levels)} operation(s) failed.", err=True)
        raise typer.Exit(1)


def _results(answer: object, levels: Mapping[str, int]) -> dict[str, tuple[int, str | None]]:
    """Return error code and message of each feature: an error of the whole request concerns all of them."""
    code, text = getattr(answer, "error_code", 0), getattr(answer, "error_message", None)
    of_each = getattr(answer, "results", ())
    return dict.fromkeys(levels, (code, text)) | {name: (one, why) for name, one, why, *_ in of_each if one}
