"""Opens the store of the tier with the broker's settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.cli import CommandFailed
from kbroker.cli._say import note
from kbroker.cli.serve import load_settings
from kbroker.config import Settings
from kbroker.runtime.disk import RealDisk
from kbroker.storage.checkpoint import read_file
from kbroker.storage.formatting import META_PROPERTIES, parse_identity
from kbroker.tiered.api import RemoteStorageError, RemoteStorageManager
from kbroker.tiered.plugins import PluginError, storage_manager


@contextmanager
def open_store(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[RemoteStorageManager]:
    """The store that the flags name; its errors become CommandFailed."""
    if options.data_dir is None and options.config is None and not options.override:
        parser.error("the store is not specified: use the broker's --data-dir or --config, or --override rsm.config.…")
    settings = load_settings(options)
    try:
        storage = storage_manager(settings.tier.remote_log_storage_manager_class_name)
        try:
            storage.configure(_configs(settings))
            yield storage
        finally:
            storage.close()
    except (PluginError, RemoteStorageError, ValueError) as error:
        raise CommandFailed(f"the store: {error}") from error


def _configs(settings: Settings) -> dict[str, str]:
    """The settings that a broker passes to its plug-in."""
    directory = settings.data_directory
    cluster_id = ""
    try:
        cluster_id = parse_identity(read_file(RealDisk(), f"{directory}/{META_PROPERTIES}").decode()).cluster_id
    except (OSError, ValueError) as error:
        note(f"kbroker tier: no cluster id in {directory}: {error}")
    return {
        **settings.tier.rsm_configs,
        "log.dir": directory,
        "broker.id": str(settings.node_id),
        "cluster.id": cluster_id,
    }
