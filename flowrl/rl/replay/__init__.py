"""Replay: shards that store rows of experience and give random ones back."""

from flowrl.rl.replay.shard import ReplayShard

__all__ = ["ReplayShard"]
