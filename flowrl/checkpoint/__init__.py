"""Checkpoints on disk: states without pickle, written whole or not at all, and checked before they are used."""

from flowrl.checkpoint.encoding import Pickled, State
from flowrl.checkpoint.files import Entry, file_name, read_state, write_state
from flowrl.checkpoint.manifest import read_manifest
from flowrl.checkpoint.series import Checkpoints, Series, best, checkpoint_at, newest
from flowrl.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointWriter",
    "Checkpoints",
    "Entry",
    "Pickled",
    "Series",
    "State",
    "best",
    "checkpoint_at",
    "file_name",
    "newest",
    "read_manifest",
    "read_state",
    "write_state",
]
