"""Checkpoints on disk: states without pickle, written whole or not at all, and checked before they are used."""

from flowrl.checkpoint.encoding import Pickled, State
from flowrl.checkpoint.files import Entry, file_name, read_state, write_state
from flowrl.checkpoint.manifest import read_manifest
from flowrl.checkpoint.writer import CheckpointWriter

__all__ = ["CheckpointWriter", "Entry", "Pickled", "State", "file_name", "read_manifest", "read_state", "write_state"]
