"""On Local the user's code keeps its file and lines, though each shard works on a copy of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

import flowrl
from flowrl import Local, Operator
from flowrl.engine.pickling import copied


def test_the_traceback_of_a_local_class_in_a_shard_names_this_file():
    @dataclass
    class Fails(Operator[Any, Any]):
        def process(self, value, ctx):
            raise KeyError("here")
            yield

    flow = flowrl.from_items([1], num_shards=1).for_each(Fails()).gather_sync()
    with flowrl.run(flow, Local()) as running, pytest.raises(KeyError) as caught:
        next(running)
    assert f'File "{__file__}"' in str(caught.value.__cause__)
    assert 'raise KeyError("here")' in str(caught.value.__cause__)


def test_a_breakpoint_of_a_script_is_met_in_a_shard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import flowrl

            def double(x):
                y = 2 * x
                return y

            if __name__ == "__main__":
                flow = flowrl.from_items([1, 21], num_shards=1).for_each(double).gather_sync()
                with flowrl.run(flow, flowrl.Local()) as running:
                    print(list(running))
            """
        )
    )
    commands = f"b {script}:6\nc\np 'at', y\nc\np 'at', y\nc\nq\n"
    done = subprocess.run(
        [sys.executable, "-m", "pdb", str(script)],
        input=commands,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "('at', 2)" in done.stdout
    assert "('at', 42)" in done.stdout
    assert "-> return y" in done.stdout


def test_a_copy_shares_code_and_no_data():
    numbers = [1, 2]

    class Holder:
        def __init__(self) -> None:
            self.numbers = numbers
            self.function = lambda x: x + len(numbers)

    holder = Holder()
    copy = copied(holder, "it")
    assert type(copy) is Holder
    assert copy.function is holder.function
    assert copy.numbers == numbers
    assert copy.numbers is not numbers
