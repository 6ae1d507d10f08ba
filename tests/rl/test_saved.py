"""A policy on disk: what was saved acts as before, and what is damaged is said so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

import flowrl
from flowrl.rl.policy import Policy
from flowrl.rl.saved import load_policy, save_policy
from flowrl.rl.spec import PolicySpec, Spaces

SPACES = Spaces(Box(-1.0, np.array([1.0, np.inf, 3.0], np.float32), (3,), np.float32), Discrete(4, start=2))
OBS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


class Narrow(torch.nn.Module):
    """A user's own module."""

    def __init__(self, observation: Any, action: Any, width: int = 8):
        super().__init__()
        self.body = torch.nn.Linear(observation.shape[0], width)
        self.actor, self.critic = torch.nn.Linear(width, int(action.n)), torch.nn.Linear(width, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.body(obs))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def state_of(policy: Policy, spec: PolicySpec, spaces: Spaces = SPACES) -> dict[str, Any]:
    """What `run.policy_state()` gives."""
    return {"policy_id": "default", "version": 7, "spec": spec, "spaces": spaces, "weights": policy.get_weights()}


def saved(path: Path, spec: PolicySpec = PolicySpec(), spaces: Spaces = SPACES) -> Policy:  # noqa: B008  (frozen)
    """A policy, saved."""
    policy = Policy(spec, spaces, seed=np.random.SeedSequence(3))
    assert save_policy(path, state_of(policy, spec, spaces)) == path
    return policy


@pytest.mark.parametrize(
    ("spec", "spaces"),
    [
        (PolicySpec(), SPACES),
        (PolicySpec(hidden=(5,), activation="relu"), SPACES),
        (PolicySpec(), Spaces(Box(0, 255, (2, 2), np.uint8), Discrete(2))),
        (PolicySpec(model=Narrow), SPACES),
        (PolicySpec(), Spaces(Box(-1, 1, (2, 2)), MultiDiscrete([[2, 3]], start=[[0, -1]]))),
        (PolicySpec(), Spaces(MultiBinary(3), MultiBinary((2, 2)))),
        (PolicySpec(), Spaces(Discrete(4, start=-2), MultiDiscrete([2, 3], np.int32))),
        (
            PolicySpec(squash=True, initial_log_std=-1.0, normalize_obs=True),
            Spaces(
                Dict({"arm": Tuple([Box(-1, 1, (2,)), Dict({"grip": MultiDiscrete([2, 5])})]), "tool": Discrete(3)}),
                Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), (2,), np.float64),
            ),
        ),
        (
            PolicySpec(convolutions=((4, 3, 2),), image_features=16, hidden=()),
            Spaces(Dict({"camera": Box(0, 255, (9, 9, 3), np.uint8), "wind": Box(-1, 1, (1,))}), Discrete(2)),
        ),
    ],
)
def test_a_loaded_policy_is_the_saved_one(tmp_path: Path, spec: PolicySpec, spaces: Spaces) -> None:
    policy = saved(tmp_path / "policy", spec, spaces)
    loaded = load_policy(tmp_path / "policy", model=spec.model)
    assert loaded.spaces == spaces
    assert loaded.spec == spec
    np.testing.assert_array_equal(loaded.get_weights(), policy.get_weights())
    obs = spaces.observation.sample()
    np.testing.assert_array_equal(loaded.act(obs, deterministic=True), policy.act(obs, deterministic=True))
    assert spaces.action.contains(loaded.act(obs, deterministic=True))


def test_it_is_found_in_the_directory_of_the_run(tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    np.testing.assert_array_equal(flowrl.load_policy(tmp_path).get_weights(), policy.get_weights())


def test_nothing_in_it_is_pickled(tmp_path: Path) -> None:
    saved(tmp_path / "policy")
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["policy.json", "policy.safetensors"]
    manifest = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert manifest["format"] == 1
    assert manifest["version"] == 7
    assert manifest["action"] == {"kind": "Discrete", "n": 4, "start": 2}
    assert manifest["spec"].items() >= {"model": None, "hidden": [64, 64], "activation": "tanh"}.items()
    assert manifest["spec"].keys() == {field.name for field in fields(PolicySpec)}


def test_saving_again_replaces_it_and_leaves_nothing_aside(tmp_path: Path) -> None:
    saved(tmp_path / "policy", PolicySpec(hidden=(5,)))
    saved(tmp_path / "policy", PolicySpec(hidden=(6,)))
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert load_policy(tmp_path).spec.hidden == (6,)


def test_a_failed_save_keeps_the_policy_that_was_there(tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    other = Spaces(Dict({"goal": Text(3)}), SPACES.action)
    with pytest.raises(ValueError, match=r"a policy with the observation/goal space Text\(.*cannot be saved"):
        save_policy(tmp_path / "policy", state_of(policy, PolicySpec(), other))
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    np.testing.assert_array_equal(load_policy(tmp_path).get_weights(), policy.get_weights())


@pytest.mark.parametrize("named", ["tests.rl.test_saved:Narrow", "builtins:print", "os:system"])
def test_no_code_runs_because_a_file_names_it(tmp_path: Path, named: str) -> None:
    policy = saved(tmp_path / "policy", PolicySpec(model=Narrow))
    edit(tmp_path, lambda manifest: manifest["spec"].update(model=named))
    with pytest.raises(ValueError, match=rf"is of the module {named}, .* yourself: load_policy\(path, model=...\)"):
        load_policy(tmp_path)
    loaded = load_policy(tmp_path, model=Narrow)
    np.testing.assert_array_equal(loaded.get_weights(), policy.get_weights())


def test_an_error_of_ones_own_model_is_no_damage(tmp_path: Path) -> None:
    saved(tmp_path / "policy", PolicySpec(model=Narrow))

    def broken(observation: Any, action: Any) -> torch.nn.Module:
        raise LookupError("no table of widths")

    with pytest.raises(LookupError, match="no table of widths"):
        load_policy(tmp_path, model=broken)


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the manifest of a saved policy."""
    path = folder / "policy" / "policy.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no saved policy in .*: it has no policy\.json"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("policy.json", "{", "is damaged"),
        ("policy.json", "[]", "has format None; this version of flowrl reads format 1"),
        ("policy.json", '{"format": 2}', "has format 2; this version of flowrl reads format 1"),
        ("policy.json", '{"format": true}', "has format True; this version of flowrl reads format 1"),
        ("policy.json", '{"format": 1}', "is damaged: 'spec' is missing"),
        ("policy.json", '{"format": 1, "spec": 3}', "is damaged"),
        ("policy.safetensors", "", "is damaged"),
        ("policy.safetensors", None, "is damaged"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    saved(tmp_path / "policy")
    if content is None:
        (tmp_path / "policy" / name).unlink()
    else:
        (tmp_path / "policy" / name).write_text(content)
    with pytest.raises(ValueError, match=problem):
        load_policy(tmp_path)


def test_a_truncated_file_of_weights_is_damage(tmp_path: Path) -> None:
    saved(tmp_path / "policy")
    weights = tmp_path / "policy" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m["spec"].update(hidden=[10**9, 10**9]), r"its model has \d{19} weights, the file holds"),
        (lambda m: m["spec"].update(recurrent="lstm", hidden=[10**9, 10**9]), r"its model has at least \d{19} weights"),
        (lambda m: m["spec"].update(hidden=7), "hidden must be a tuple of widths, got 7"),
        (lambda m: m["spec"].update(colour="red"), "unexpected keyword argument 'colour'"),
        (lambda m: m["observation"].update(dtype="float999"), "float999"),
        (lambda m: m["observation"].update(shape="wide"), "shape"),
        (lambda m: m["action"].update(kind="Wheel"), "unknown kind of action space: 'Wheel'"),
        (lambda m: m.update(action=[]), "list indices"),
    ],
)
def test_a_manifest_that_was_changed_is_damaged(tmp_path: Path, change: Callable[[Any], Any], problem: str) -> None:
    saved(tmp_path / "policy")
    edit(tmp_path, change)
    with pytest.raises(ValueError, match=f"the policy in .*policy is damaged: .*{problem}"):
        load_policy(tmp_path)


def test_weights_that_were_changed_are_damage_and_files_without_a_digest_are_read(tmp_path: Path) -> None:
    policy = saved(tmp_path / "policy")
    weights = tmp_path / "policy" / "policy.safetensors"
    as_saved = weights.read_bytes()
    weights.write_bytes(as_saved[:-1] + bytes([as_saved[-1] ^ 1]))
    with pytest.raises(ValueError, match="is damaged: the weights are not those that were saved"):
        load_policy(tmp_path)
    weights.write_bytes(as_saved)
    edit(tmp_path, lambda manifest: manifest.pop("weights_sha256"))
    np.testing.assert_array_equal(load_policy(tmp_path).get_weights(), policy.get_weights())


# where it is written
def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for hidden in (5, 6):
        saved(tmp_path / "link", PolicySpec(hidden=(hidden,)))
    assert (tmp_path / "link").is_symlink()
    assert load_policy(tmp_path / "real").spec.hidden == (6,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_what_is_no_policy_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thesis = tmp_path / "work" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("all of it")
    monkeypatch.chdir(tmp_path / "work")
    for path, problem in [
        (thesis, "thesis.txt is a file; a policy needs a directory of its own"),
        (tmp_path, "holds the working directory"),
        (Path("."), "is or holds the working directory"),
        (Path("/"), "/ is or holds the working directory"),
    ]:
        with pytest.raises(FileExistsError, match=problem):
            saved(path)
    monkeypatch.chdir("/")
    with pytest.raises(FileExistsError, match=r"work holds other things and no policy\.json"):
        saved(tmp_path / "work")
    assert thesis.read_text() == "all of it"
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_an_empty_directory_is_taken_and_other_files_beside_a_policy_are_kept(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    saved(tmp_path / "policy", PolicySpec(hidden=(5,)))
    (tmp_path / "policy" / "notes.txt").write_text("good")
    saved(tmp_path / "policy", PolicySpec(hidden=(6,)))
    assert (tmp_path / "policy" / "notes.txt").read_text() == "good"
    assert load_policy(tmp_path).spec.hidden == (6,)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_what_was_there_comes_back_if_it_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "policy", PolicySpec(hidden=(5,)))
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name.startswith(".policy.") and not self.name.endswith(".old") and target.name == "policy":
            raise OSError("the disk is full")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="the disk is full"):
        saved(tmp_path / "policy", PolicySpec(hidden=(6,)))
    assert load_policy(tmp_path).spec.hidden == (5,)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
