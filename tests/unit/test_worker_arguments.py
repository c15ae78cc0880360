"""What flags and variables about workers mean, and which are refused, in a line that names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import Std

from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.errors import ConfigurationError
from launcher.arguments import parse
from launcher.cli import settings_from


def settings(tmp_path: Path, *flags: str) -> AgentSettings:
    return settings_from(parse([f"--log-dir={tmp_path}", *flags, __file__]))


def test_streams_of_any_local_rank(tmp_path: Path) -> None:
    output = settings(tmp_path, "--redirect=2", "--tee=0:3,10:1", "--local-ranks-filter=0,10").output
    assert (output.redirects, output.tee) == (Std.ERR, {0: Std.ALL, 10: Std.OUT})
    assert output.shown == {0, 10}


def test_no_flag_leaves_the_output_alone(tmp_path: Path) -> None:
    output = settings(tmp_path).output
    assert (output.redirects, output.tee, output.shown, output.specs) == (Std.NONE, Std.NONE, None, None)


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        (["--redirects=4"], {}, "--redirects=4 is neither"),
        (["--tee=0:1,x"], {}, "--tee=0:1,x is neither"),
        (["--local-ranks-filter=a"], {}, "comma-separated list of integers"),
        (["--logs-specs=nobody"], {}, "torchrun.logs_specs[nobody]"),
        (["--event-log-handler=x"], {}, "--event-log-handler=x"),
        (["--numa-binding=node"], {"PATH": "/nowhere"}, "numactl CLI is required for NUMA binding"),
        (
            ["--virtual-local-rank", "--nproc-per-node=3"],
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            "local_rank 2 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1",
        ),
        ([], {"TORCHELASTIC_HEALTH_CHECK_PORT": "x"}, "TORCHELASTIC_HEALTH_CHECK_PORT=x"),
        (["--run-path", "--no-python"], {}, ""),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not words:
        assert "elastic_runtime.agent.run_path" in settings(tmp_path, *flags).command
        return
    with pytest.raises(ConfigurationError) as refused:
        settings(tmp_path, *flags)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [], "something was made before it was refused"


def test_numa_binding_precedes_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU torch cannot tell its cores, and says so."""
    program = tmp_path / "bin" / "numactl"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr("torch.numa.binding._get_logical_cpus_to_bind_to", lambda **_: {0, 1, 4})
    made = settings(tmp_path / "logs", "--numa-binding=node", "--nproc-per-node=2")
    assert made.command_prefixes == dict.fromkeys((0, 1), ("numactl", "--physcpubind=0-1,4"))
