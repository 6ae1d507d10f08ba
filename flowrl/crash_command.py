"""`flowrl replay-crash FILE`: plays what led to an environment's fault again, and says whether it came again."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from flowrl.errors import text_of

REPRODUCED, NOT_REPRODUCED, BAD_USAGE = 0, 1, 2
ALLOW = "--allow-import"
USAGE = f"""usage: flowrl replay-crash FILE [{ALLOW}]

Plays the bundle that a rollout worker left of an environment's fault (EnvOptions.crash_dir) in this process: the same
environment, seed and actions. Exit codes: 0 the same error came in the same place, 1 it did not, 2 the bundle cannot be
played.

{ALLOW}  import the factory and the wrappers that the bundle names, which runs their code"""


def replay(args: Sequence[str]) -> int:
    """The exit code; what was played and what came of it is printed."""
    if "--help" in args or "-h" in args:
        print(USAGE)
        return REPRODUCED
    paths = [arg for arg in args if arg != ALLOW]
    if len(paths) != 1 or paths[0].startswith("-"):
        print(f"flowrl: replay-crash takes one file, got {' '.join(args) or 'nothing'}\n{USAGE}", file=sys.stderr)
        return BAD_USAGE
    if os.getcwd() not in sys.path:  # modules beside the user, as training finds them
        sys.path.insert(0, os.getcwd())
    from flowrl.rl.crashes import read_crash
    from flowrl.rl.replay_crash import CannotReplay, replay_crash

    try:
        crash = read_crash(paths[0])
        print(crash, flush=True)
        result = replay_crash(paths[0], allow_import=ALLOW in args)
    except (CannotReplay, ValueError, OSError) as error:
        print(f"flowrl: {text_of(error)}", file=sys.stderr)
        return BAD_USAGE
    if result.error is not None:
        traceback.print_exception(result.error)
    sys.stderr.flush()
    print(f"{'reproduced' if result.reproduced else 'not reproduced'}: {result.said}")
    return REPRODUCED if result.reproduced else NOT_REPRODUCED
