"""A configuration file on its way to the launcher: lines, mistakes, precedence, and the merged whole."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from elastic_runtime.environment import SESSION as SESSION_VARIABLE
from elastic_runtime.environment import SessionDefaults, session_defaults
from launcher import cli, config
from launcher.arguments import parse, parser
from launcher.config_file import read, toml_lines
from launcher.schema import AT, SESSION, json_schema
from tests.process.cluster import ROOT

TOML = '''# a comment [x]
script = "a = [1"
args = [ # "x
  "--lr", "]",
  \'\'\'a
b = 3
\'\'\',
]

[launch]
nnodes = "1:4"
"max-restarts" = 3
rdzv_conf = {a = 1, b = "}"}
[at.8]
micro = """
x = 3
"""
[at."9"]
c.d = 4
z = 1'''


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PET_TEE", "PET_ROLE", "PET_CONFIG", "PET_STANDALONE"):
        monkeypatch.delenv(name, raising=False)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert _exit_code(*argv) == 2
    return [line.removeprefix("elasticrun: ") for line in capsys.readouterr().err.splitlines()]


def _exit_code(*argv: str) -> int:
    try:
        return cli.main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


# -- lines ------------------------------------------------------------------------------------------------------------


def test_every_key_has_its_line() -> None:
    assert tomllib.loads(TOML)
    assert {".".join(keys): line for keys, line in toml_lines(TOML).items()} == {
        "script": 2,
        "args": 3,
        "launch": 10,
        "launch.nnodes": 11,
        "launch.max-restarts": 12,
        "launch.rdzv_conf": 13,
        "at": 14,
        "at.8": 14,
        "at.8.micro": 15,
        "at.9": 18,
        "at.9.c": 19,
        "at.9.c.d": 19,
        "at.9.z": 20,
    }


def test_yaml_means_what_it_looks_like() -> None:
    Path("job.yaml").write_text(
        "launch:\n  nnodes: 1:4\n  role: no\n  monitor-interval: 1e-3\nat:\n  8: {lr_scale: 2}\n"
    )
    file = read("job.yaml")
    assert file.values["launch"] == {"nnodes": "1:4", "role": "no", "monitor_interval": 0.001}
    assert file.values["at"] == {"8": {"lr_scale": 2}}
    assert (file.place(("launch", "role")), file.place(("at", "8", "lr_scale"))) == ("job.yaml:3", "job.yaml:6")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.toml", "a = 1\nb = = 2\n", "job.toml:2: not valid TOML: Invalid value"),
        ("job.toml", "a = 1\na = 2\n", "job.toml:2: not valid TOML: Cannot overwrite a value"),
        ("job.toml", "a = 1\nb = [\n", "job.toml:3: not valid TOML: Invalid value"),
        (
            "job.toml",
            "[launch]\nlog_dir = 'a'\nlog-dir = 'b'\n",
            "job.toml:3: log-dir stands here a second time, as log_dir",
        ),
        ("job.yaml", "launch:\n  role: a\n  role: b\n", "job.yaml:3: role stands here a second time"),
        ("job.yaml", "a: [1\nb: 2\n", "job.yaml:2: not valid YAML: "),
        ("job.yaml", "- a\n", "job.yaml:1: must be keys with values, not list"),
        ("job.json", "{}", "--config=job.json: the name must end in .toml, .yaml, .yml"),
    ],
)
def test_what_is_no_configuration(capsys: pytest.CaptureFixture[str], name: str, text: str, said: str) -> None:
    Path(name).write_text(text)
    (line,) = refused(capsys, "--config", name, "train.py")
    assert line.startswith(said)


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--config", "a.toml") == ["--config=a.toml cannot be read: No such file or directory"]


# -- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = [
    ("scrip = 'train.py'", "1: scrip is not known; did you mean script?"),
    ("nnodes = 3", "1: nnodes belongs under [launch]"),
    ("[launch]\nscript = 'a'", "2: [launch] script stands at the top, before any [table]"),
    ("[launch]\nnnode = '1:4'", "2: [launch] nnode is not known; did you mean nnodes?"),
    ("[launch]\nconfig = 'a.toml'", "2: [launch] config is not known"),
    ("[launch]\nmax-restarts = 'x'", '2: [launch] max_restarts = "x" must be a whole number'),
    ("[launch]\nmax_restarts = true", "2: [launch] max_restarts = true must be a whole number"),
    ("[launch]\nstandalone = 1", "2: [launch] standalone = 1 must be true or false"),
    ("[launch]\nstart_method = 'spwan'", "must be one of spawn, fork, forkserver; did you mean spawn?"),
    ("[launch]\ntee = [1]", "2: [launch] tee = [1] must be a string or a number, as after the flag"),
    ("[launch]\nseed = 4", "2: [launch] seed belongs under [session]"),
    ("launch = 3", "1: launch must be a table, [launch]"),
    ("args = 'x'", '1: args = "x" must be a list of strings'),
    ("[session]\nglobal_batch_size = 0", "2: [session] global_batch_size = 0 must be a whole number of at least 1"),
    ("[session]\nbatch_rule = 'fixed'", "did you mean fixed_global?"),
    ("[session]\nmicro = 4", "2: [session] micro is not known; did you mean micro_batch_size?"),
    (
        "[session]\nmicro_batch_size = 5\nglobal_batch_size = 64",
        "3: global_batch_size=64 is not a multiple of micro_batch_size=5; the nearest that are: 60 and 65",
    ),
    (
        "[session]\nmicro_batch_size = 4\nglobal_batch_size = 64\n[at.8]\nmicro_batch_size = 5",
        "5: [at.8]: global_batch_size=64 is not a multiple of micro_batch_size=5",
    ),
    (
        "[session]\nmicro_batch_size = 4\nglobal_batch_size = 64\n[at.32]\nlr_scale = 2",
        "[at.32]: a batch of 64 in micro-batches of 4 has work for 16 of 32 workers",
    ),
    (
        "[session]\nreduction = 'exact'\nmicro_batch_size = 4\nglobal_batch_size = 64\n[at.8]\nlr_scale = 2",
        "[at.8] goes with reduction='fast' only",
    ),
    ("[at.8]\nthreads = 2", "2: [at.8] threads cannot differ by world size: it is set when the Session opens"),
    ("[at.8]\nlr = 2", "2: [at.8] lr is not known; did you mean lr_scale?"),
    ("[at.x]\nlr_scale = 2", "1: [at.x]: the number of workers in the world, such as [at.8]"),
    ("[at.8]\nlr_scale = -1", "2: [at.8] lr_scale = -1 must be a positive number"),
    ("[sesion]\nseed = 2", "1: sesion is not known; did you mean session?"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_one_line_with_its_place_and_the_way_out(
    capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    Path("job.toml").write_text(text)
    (line,) = refused(capsys, "--config", "job.toml", "train.py")
    assert line.startswith("job.toml:") and said in line, line


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text("[session]\nseed = 'x'\nlr_rule = 3\n[launch]\ntee = [1]\nrole = []\n")
    lines = refused(capsys, "--config", "job.toml", "train.py")
    assert [line.split(" ")[0] for line in lines] == [f"job.toml:{n}:" for n in (2, 3, 5, 6)]


def test_what_only_the_launcher_understands_is_refused_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").touch()
    Path("job.toml").write_text('script = "train.py"\n[launch]\nnnodes = "3:2"\n')
    wrong = "--nnodes=3:2: MIN must be at least 1 and at most MAX"
    assert refused(capsys, "--config", "job.toml") == [f"job.toml:3: {wrong}"]
    assert refused(capsys, "--config", "job.toml", "--nnodes=3:2") == [wrong]
    Path("train.py").unlink()
    assert refused(capsys, "--config", "job.toml", "--nnodes=1")[0].startswith(
        "job.toml:1: there is no script 'train.py'"
    )


# -- precedence -------------------------------------------------------------------------------------------------------


def test_flag_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("job.toml").write_text("script = 'a.py'\n[launch]\nnnodes = 2\nrole = 'file'\ntee = 3\n")
    monkeypatch.setenv("PET_ROLE", "environment")
    monkeypatch.setenv("PET_TEE", "1")
    found = parse(["--config=job.toml", "--tee=2"])
    assert (found.tee, found.role, found.nnodes, found.redirects) == ("2", "environment", "2", "0")
    sources = [found.job.sources[key] for key in ("tee", "role", "nnodes", "redirects", "script")]
    assert sources == ["flag", "PET_ROLE", "job.toml:3", "default", "job.toml:1"]


def test_a_flag_that_the_environment_denies_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("job.toml").write_text("script = 'a.py'\n[launch]\nstandalone = true\n")
    assert parse(["--config=job.toml"]).standalone is True
    monkeypatch.setenv("PET_STANDALONE", "0")
    assert parse(["--config=job.toml"]).standalone is False


def test_the_file_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("job.toml").write_text("script = 'a.py'\n")
    monkeypatch.setenv("PET_CONFIG", "job.toml")
    assert parse([]).training_script == "a.py"


def test_a_script_on_the_command_line_replaces_the_file_s_with_its_arguments() -> None:
    Path("job.toml").write_text("script = 'a.py'\nargs = ['--x', 1]\n")
    found = parse(["--config=job.toml"])
    assert (found.training_script, found.training_script_args) == ("a.py", ["--x", "1"])
    found = parse(["--config=job.toml", "b.py", "--nnodes=7"])
    assert (found.training_script, found.training_script_args, found.nnodes) == ("b.py", ["--nnodes=7"], "1:1")


def test_values_become_what_the_same_flag_would() -> None:
    Path("job.toml").write_text(
        """
        script = 'a.py'
        [launch]
        nproc-per-node = 4
        max-restarts = 0
        dead_after = 2
        rdzv_conf = {join_timeout = 5, is_host = true}
        local_ranks_filter = [0, 11]
        signals_to_handle = ["SIGTERM", "SIGUSR1"]
        duplicate_stdout_filters = ["a,b", "c"]
        duplicate_stderr_filters = "a,,b,c"
        numa_binding = "node"
        """
    )
    flags = ["--nproc-per-node=4", "--max-restarts=0", "--dead-after=2", "--rdzv-conf=join_timeout=5,is_host=true"]
    flags += ["--local-ranks-filter=0,11", "--signals-to-handle=SIGTERM,SIGUSR1", "--numa-binding=node"]
    flags += ["--duplicate-stdout-filters=a,,b,c", "--duplicate-stderr-filters=a,,b,c", "a.py"]
    of_file, of_flags = vars(parse(["--config=job.toml"])), vars(parse(flags))
    for found in (of_file, of_flags):
        del found["job"], found["config"]
    assert of_file == of_flags


def test_workers_get_the_session_s_part_of_their_own_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("job.toml").write_text("[session]\nseed = 4\n[at.2]\nlr_scale = 2\n")
    (text,) = parse(["--config=job.toml", "a.py"]).job.variables().values()
    monkeypatch.setenv(SESSION_VARIABLE, text)
    assert session_defaults() == SessionDefaults(
        values={"seed": 4}, at={2: {"lr_scale": 2}}, sources={"seed": "job.toml:2", "at.2.lr_scale": "job.toml:4"}
    )
    assert parse(["a.py"]).job.variables() == {SESSION_VARIABLE: ""}
    monkeypatch.delenv(SESSION_VARIABLE)
    assert parse(["a.py"]).job.variables() == {}


def test_without_a_file_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    found = parse(["--nnodes=2", "a.py", "--config", "x", "\0"])
    assert (found.training_script_args, found.config) == (["--config", "x", "\0"], None)
    assert "required: training_script" in refused(capsys)[0]
    assert "--nnodes: expected one argument" in refused(capsys, "--nnodes")[0]


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_merged_configuration_tells_its_sources_and_is_a_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.yaml").write_text(
        "launch:\n  nnodes: 1:4\n  max_restarts: 5\n  tee: 3\n  rdzv_conf: {is_host: true}\n"
        "session:\n  seed: 4\nat:\n  8: {lr_scale: 1.5}\n"
    )
    monkeypatch.setenv("PET_TEE", "1")
    assert _exit_code("--config=job.yaml", "--print-config", "--max-restarts=7", "train.py", '--x="\\') == 0
    shown = capsys.readouterr().out
    for line in (
        'script = "train.py"  # flag',
        'nnodes = "1:4"  # job.yaml:2',
        "max_restarts = 7  # flag",
        'tee = "1"  # PET_TEE',
        'rdzv_conf = "is_host=true"  # job.yaml:5',
        'redirects = "0"  # default',
        "# log_dir is not set  # default",
        "seed = 4  # job.yaml:7",
        'lr_rule = "none"  # default',
        "# global_batch_size is not set  # the script gives it",
        "lr_scale = 1.5  # job.yaml:9",
    ):
        assert line in shown.splitlines(), shown
    assert tomllib.loads(shown)["args"] == ['--x="\\']
    Path("again.toml").write_text(shown)
    assert _exit_code("--config=again.toml", "--print-config") == 0
    again = capsys.readouterr().out
    assert tomllib.loads(again) == tomllib.loads(shown)


def test_it_is_shown_without_a_script_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("--print-config") == 0
    assert "# script is not set" in capsys.readouterr().out


def test_the_documented_schema_is_the_real_one() -> None:
    documented = (ROOT / "docs" / "job.schema.json").read_text()
    assert json_schema(parser()) == documented, "write it anew: elasticrun --print-schema > docs/job.schema.json"


def test_every_flag_and_every_argument_of_the_session_can_stand_in_a_file() -> None:
    from elastic_runtime.session.arguments import AT_KEYS
    from elastic_runtime.session.defaults import SETTABLE

    assert set(SESSION) == set(SETTABLE) and set(AT) == set(AT_KEYS)
    flags = {action.dest for action in parser()._actions if action.option_strings}
    assert flags - set(config.flags(parser())) == set(config.NOT_IN_A_FILE)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/job.*")), ids=lambda path: path.parent.name)
def test_the_examples_are_valid(path: Path) -> None:
    found = parse([f"--config={path}"])
    assert (ROOT / found.training_script).is_file()


def test_the_document_s_file_is_valid_and_its_mistakes_are_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    document = (ROOT / "docs" / "configuration.md").read_text()
    Path("job.toml").write_text(document.split("```toml\n")[1].split("```")[0])
    found = parse(["--config=job.toml"])
    assert found.nproc_per_node == "8" and found.job.session.at == {64: {"micro_batch_size": 4, "lr_scale": 0.9}}
    for key in (*SESSION, *AT):
        assert f"`{key}`" in document
    Path("job.toml").write_text("[launch]\nmax_restart = 1\n[at.64]\nseed = 1\n")
    for line in refused(capsys, "--config=job.toml", "a.py"):
        assert line.partition(": ")[2] in document
