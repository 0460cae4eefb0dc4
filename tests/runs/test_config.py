import subprocess
import sys

import pytest
from grokscope.runs.config import RunConfig, from_mapping, from_toml, parse_assignment


def test_the_default_is_the_run_of_the_design():
    config = RunConfig()
    assert (config.task, config.modulus, config.train_fraction) == ("add", 97, 0.5)
    assert (config.layers, config.width, config.heads, config.feedforward) == (1, 128, 4, 512)
    assert (config.optimizer, config.lr, config.weight_decay) == ("adamw", 1e-3, 1.0)
    assert (config.batch_size, config.replacement) == (512, True)


def test_json_and_toml_give_back_the_same_configuration(tmp_path):
    config = RunConfig(
        seed=3, batch_seed=4, clip=1.0, batch_size="full", state_at=(5, "memorized"), task_options={"n": 3}
    )
    assert RunConfig.from_json(config.to_json()) == config
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert from_toml(path) == config
    assert from_toml(path).digest() == config.digest()


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"lr": "fast"}, "lr='fast' has the wrong type; it must be float"),
        ({"lr": -1.0}, "lr=-1.0 must be positive"),
        ({"lr": float("nan")}, "lr=nan must be positive"),
        ({"layers": 1.5}, "layers=1.5 has the wrong type"),
        ({"steps": True}, "steps=True has the wrong type"),
        ({"replacement": 1}, "replacement=1 has the wrong type"),
        ({"betas": [0.9]}, "must have 2 entries"),
        ({"betas": [0.9, 1.0]}, "two numbers in \\[0, 1\\)"),
        ({"learning_rate": 1.0}, "unknown field 'learning_rate'"),
        ({"task": "adding"}, "task='adding' must be one of add"),
        ({"train_fraction": 1.0}, "strictly between 0 and 1"),
        ({"heads": 3}, "width=128 must be a multiple of heads=3"),
        ({"batch_size": "all"}, "batch_size='all' has the wrong type"),
        ({"task_options": {"ops": [1]}}, "task_options.ops"),
    ],
)
def test_wrong_values_name_field_value_and_bound(table, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_mapping(table, source="test")


def test_whole_numbers_serve_as_floats_but_not_the_reverse():
    assert from_mapping({"weight_decay": 1}, source="test").weight_decay == 1.0


def test_derived_seeds_follow_seed_unless_given():
    config = from_mapping({"seed": 5, "batch_seed": 1}, source="test")
    assert (config.init_seed, config.split_seed, config.batch_seed) == (5, 5, 1)
    changed = from_mapping({"seed": 6}, source="test", base=config)
    assert (changed.init_seed, changed.split_seed, changed.batch_seed) == (6, 6, 1)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.toml.*No such file"):
        from_toml(tmp_path / "nowhere.toml")
    (tmp_path / "broken.toml").write_text("lr = ")
    with pytest.raises(ValueError, match=r"broken.toml.*not valid TOML"):
        from_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("lr=0.01", ("lr", 0.01)), ("task=mul", ("task", "mul")), ("betas=[0.9, 0.98]", ("betas", [0.9, 0.98]))],
)
def test_assignments_are_read_as_toml(text, expected):
    assert parse_assignment(text) == expected


def test_configuration_loads_no_torch():
    code = "import sys, grokscope.runs.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
