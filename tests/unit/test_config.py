"""Configuration: layers of options, unknown names, types and domains."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemroot_spark.config import load_config
from stemroot_spark.errors import ConfigError, UsageError


def _file(folder: Path, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_are_the_documented_ones() -> None:
    config = load_config()
    assert (config.plan.epsilon, config.plan.confidence, config.plan.seed) == (0.05, 0.95, 1)
    assert config.plan.communication == "exclude"
    assert config.ingest.max_bad_fraction == 0.0
    assert config.plan.resolved_launch_noise() == (0.03, "default")


def test_a_flag_wins_over_an_override_which_wins_over_files_of_which_the_last_wins(tmp_path: Path) -> None:
    first = tmp_path / "first.toml"
    first.write_text("[plan]\nepsilon = 0.1\nconfidence = 0.8\nseed = 7\nfactor_spread = 2.0\n", "utf-8")
    second = _file(tmp_path, "[plan]\nepsilon = 0.2\nconfidence = 0.7\nseed = 8\n")
    config = load_config(
        [str(first), second],
        ["plan.epsilon=0.3", "plan.confidence=0.6"],
        {"plan": {"epsilon": 0.4, "confidence": None}},
    )
    plan = config.plan
    assert (plan.epsilon, plan.confidence, plan.seed, plan.factor_spread) == (0.4, 0.6, 8, 2.0)


def test_a_file_with_one_key_leaves_the_other_defaults(tmp_path: Path) -> None:
    changed = load_config([_file(tmp_path, "[ingest]\nrows_per_batch = 10\n")]).as_dict()
    expected = load_config().as_dict()
    assert changed.pop("ingest") == expected.pop("ingest") | {"rows_per_batch": 10}
    assert changed == expected


@pytest.mark.parametrize(
    ("override", "closest"),
    [
        ("plan.epsilom=0.1", "did you mean epsilon"),
        ("plan.factorspread=0.1", "did you mean factor_spread"),
        ("plann.epsilon=0.1", "did you mean plan"),
        ("ingest.max_bad_fractions=1", "did you mean max_bad_fraction"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_known_one(override: str, closest: str) -> None:
    with pytest.raises(ConfigError, match=closest):
        load_config(overrides=[override])


def test_an_unknown_name_like_no_other_is_refused_with_all_known_ones() -> None:
    known = "draw, evaluate, ingest, io, moments, plan"
    with pytest.raises(ConfigError, match=rf"unknown section \[zzz\]; known are {known}"):
        load_config(overrides=["zzz.a=1"])


@pytest.mark.parametrize("override", ["plan.epsilon", "epsilon=0.1", "=0.1", "plan.=0.1", ""])
def test_an_override_that_is_not_section_key_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        load_config(overrides=[override])


@pytest.mark.parametrize(
    "override",
    [
        "plan.epsilon=small",
        'plan.epsilon="0.1"',
        "plan.epsilon=",
        "plan.epsilon=true",
        "plan.epsilon=[0.1]",
        "plan.seed=1.0",
        "plan.seed=true",
        "plan.method=3",
        "plan.launch_noise=true",
        "ingest.rows_per_batch=1e3",
    ],
)
def test_a_value_of_another_type_is_refused_naming_the_option(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_config(overrides=[override])


def test_a_whole_number_is_accepted_for_a_real_one_and_becomes_real() -> None:
    config = load_config(overrides=["plan.launch_noise=1", "draw.margin_sigma=0", "plan.factor_spread=2"])
    assert config.plan.resolved_launch_noise() == (1.0, "option")
    assert isinstance(config.draw.margin_sigma, float)
    # Equal options must give equal fingerprints, however they were written.
    assert repr(config.plan.factor_spread) == repr(2.0)


def test_text_needs_no_quotes_in_an_override() -> None:
    bare = load_config(overrides=["plan.method=stem-root-paper"])
    quoted = load_config(overrides=['plan.method = "stem-root-paper"'])
    assert bare == quoted
    assert bare.plan.method == "stem-root-paper"


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("plan.epsilon", ["0", "1", "7", "-0.1", "nan", "inf", "-inf"]),
        ("plan.confidence", ["0", "1", "1.5", "nan"]),
        ("plan.factor_spread", ["-0.1", "nan"]),
        ("plan.launch_noise", ["0", "10", "-1", "nan", "inf", "some"]),
        ("plan.seed", [str(2**63), str(-(2**63) - 1)]),
        ("plan.warmup_launches", ["-1"]),
        ("plan.method", ["optimum"]),
        ("plan.guarantee", ["sometimes"]),
        ("plan.communication", ["maybe"]),
        ("ingest.format", ["csv"]),
        ("ingest.max_bad_fraction", ["-0.01", "1.01", "nan"]),
        ("ingest.max_duration_ns", ["0"]),
        ("ingest.rows_per_batch", ["0"]),
        ("draw.margin_sigma", ["-1", "nan"]),
        ("draw.margin_constant", ["-1", "nan"]),
        ("io.commit_attempts", ["0"]),
        ("io.commit_backoff_s", ["-1", "nan"]),
    ],
)
def test_a_value_outside_its_domain_is_refused_naming_option_and_domain(
    option: str, values: list[str]
) -> None:
    for value in values:
        with pytest.raises(UsageError, match=rf"{option} is .*, but must be "):
            load_config(overrides=[f"{option}={value}"])


@pytest.mark.parametrize(
    "override",
    [
        "plan.epsilon=1e-9",
        "plan.epsilon=0.999999",
        "plan.seed=-9223372036854775808",
        "plan.seed=9223372036854775807",
        "ingest.max_bad_fraction=1",
        "ingest.max_bad_fraction=0",
        "draw.margin_sigma=0",
        "io.commit_attempts=1",
    ],
)
def test_the_edges_of_a_domain_are_accepted(override: str) -> None:
    load_config(overrides=[override])


def test_a_file_that_is_absent_or_not_toml_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml.*No such file"):
        load_config([str(tmp_path / "nowhere.toml")])
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config([_file(tmp_path, "[plan\n")])
    (tmp_path / "options.toml").write_bytes(b"[plan]\nmethod = '\xff'\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config([str(tmp_path / "options.toml")])
    with pytest.raises(ConfigError, match="must be a table"):
        load_config([_file(tmp_path, "plan = 3\n")])


def test_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.toml: unknown key plan\.epsilom"):
        load_config([_file(tmp_path, "[plan]\nepsilom = 0.1\n")])
