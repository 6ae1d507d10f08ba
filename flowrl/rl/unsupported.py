"""The error for spaces that no policy here can observe or act in."""

from __future__ import annotations

SUPPORTED = {
    "observation": (
        "Box of numbers of any shape, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these, also nested"
    ),
    "action": "Discrete, MultiDiscrete, MultiBinary and Box of floats",
}
REMEDY = {"observation": "an ObservationWrapper", "action": "an ActionWrapper"}


class UnsupportedSpace(ValueError):  # noqa: N818  (names the thing, like the spaces it speaks of)
    """A space that no policy here can observe or act in."""

    @staticmethod
    def of(
        role: str, space: object, where: str, hint: str, path: str = "", supported: str | None = None
    ) -> UnsupportedSpace:
        """The error for an "observation" or "action" space; `path` is the place in a nested one.

        `supported`: the spaces that would do, where a policy's specification leaves fewer than all.
        """
        at = f" at {path!r}" if path else ""
        return UnsupportedSpace(
            f"the {role} space of {where}{at} is {space}, which is not supported ({hint}); supported are "
            f"{supported or SUPPORTED[role]}. Wrap the environment in {REMEDY[role]} that gives such a space"
        )
