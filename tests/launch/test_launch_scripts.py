"""The launch scripts: what a dry run would run, what they refuse, and shellcheck."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

from gigpo_jax.config.keys import KEYS
from gigpo_jax.engines.remote.weight_store import local_folder
from gigpo_jax.engines.vllm.launch import VllmSettings, server_command, server_environment

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = (
    "vllm_sidecar.sh",
    "gpu_node.sh",
    "tpu_pod.sh",
    "tpu_engine.sh",
    "slurm.sbatch",
    "install.sh",
)
KEY = "sesame-open"
SIDECAR = ("--model", "/m", "--weights-dir", "/w")
NODE = (
    "--config",
    "configs/alfworld.py:1.5b",
    "--model",
    "/m",
    "--learner-gpus",
    "0,1",
    "--server-gpus",
    "2,3,4,5",
)
POD = (
    "--name",
    "pod",
    "--zone",
    "z",
    "--config",
    "configs/alfworld.py:7b",
    "--workdir",
    "/shared/run",
)
JOB = ("--config", "configs/alfworld.py:7b", "--model", "/m", "--workdir", "/shared/run")


def run(script: str, *arguments: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere"} | (
        {"VLLM_API_KEY": key} if key else {}
    )
    command = ["bash", str(ROOT / "launch" / script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env=environment, cwd=ROOT
    )


def dry(script: str, *arguments: str) -> list[str]:
    """The lines of a dry run."""
    done = run(script, "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout
    return done.stdout.splitlines()


def refused(script: str, *arguments: str, key: str = KEY) -> str:
    done = run(script, *arguments, key=key)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_says_every_option(script: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0
    text = (ROOT / "launch" / script).read_text()
    lines = [line.strip() for line in text.replace("\\\n", "").splitlines()]
    (options,) = [
        line for line in lines if line.startswith("--") and line.endswith(")") and " | " in line
    ]
    for option in [*options.rstrip(")").split(" | "), "--dry-run", "--help"]:
        assert f"  {option.strip()} " in done.stdout.replace("\n", " \n"), option
    assert "no such option" in refused(script, "--nonsense")


@pytest.mark.skipif(
    not (pathlib.Path(sys.executable).parent / "shellcheck").exists()
    and not shutil.which("shellcheck"),
    reason="shellcheck is not installed",
)
def test_shellcheck_finds_nothing() -> None:
    own = pathlib.Path(sys.executable).parent / "shellcheck"
    program = str(own) if own.exists() else "shellcheck"
    scripts = [str(ROOT / "launch" / script) for script in SCRIPTS]
    done = subprocess.run(
        [program, *scripts], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_sidecar_starts_servers_as_the_engine_does() -> None:
    """The same arguments and environment, so what was tried with one holds for the other."""
    for gpus, gpu, rank in (
        ("none", False, 0),
        ("0", True, 0),
        ("none", False, 24),
        ("0", True, 1),
    ):
        more = (
            "--max-length",
            "96",
            "--sequences",
            "64",
            "--lora-rank",
            str(rank),
            "--gpu-memory-fraction",
            "0.5",
        )
        (line, _) = dry("vllm_sidecar.sh", *SIDECAR, "--gpus", gpus, *more)
        words = shlex.split(line)
        server_settings = VllmSettings(
            python=pathlib.Path(".venv-vllm/bin/python"),
            model=pathlib.Path("/m"),
            dtype="bfloat16",
            max_length=96,
            sequences=64,
            weights_dir=pathlib.Path("/w"),
            folder=pathlib.Path("/logs"),
            gpu=gpu,
            cache_gib=4,
            gpu_memory_fraction=0.5,
            lora_rank=rank,
        )
        ours = server_command(server_settings, 8000)
        extra = {"--tensor-parallel-size", "1"}
        assert set(ours) <= set(words)
        assert set(words[words.index("-m") :]) - set(ours) <= extra
        settings = dict(word.split("=", 1) for word in words[1 : words.index(ours[0])])
        settings.pop("CUDA_VISIBLE_DEVICES", None)
        wanted = server_environment(server_settings, KEY)
        assert {name: wanted[name] for name in settings} == settings
        assert set(wanted) - set(settings) - set(os.environ) == {"VLLM_API_KEY"} - set(os.environ)


def test_replicas_get_gpus_and_ports_of_their_own() -> None:
    lines = dry(
        "vllm_sidecar.sh",
        *SIDECAR,
        "--gpus",
        "2,3,6,7",
        "--tensor",
        "2",
        "--host",
        "10.0.0.5",
        "--port",
        "9000",
    )
    assert ["CUDA_VISIBLE_DEVICES=2\\,3" in lines[0], "CUDA_VISIBLE_DEVICES=6\\,7" in lines[1]] == [
        True,
        True,
    ]
    assert ["--port 9000" in lines[0], "--port 9001" in lines[1]] == [True, True]
    assert lines[2].endswith("--config.engine.urls=http://10.0.0.5:9000,http://10.0.0.5:9001")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_without_a_key_is_refused(host: str) -> None:
    assert "VLLM_API_KEY: not set" in refused(
        "vllm_sidecar.sh", *SIDECAR, "--gpus", "none", "--host", host, key=""
    )


def test_the_sidecar_fails_when_a_server_ends(tmp_path: pathlib.Path) -> None:
    server = tmp_path / "python"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    (tmp_path / "config.json").touch()
    own = ("--model", str(tmp_path), "--weights-dir", str(tmp_path), "--gpus", "none")
    done = run("vllm_sidecar.sh", *own, "--python", str(server))
    assert (done.returncode, done.stderr) == (1, "vllm_sidecar.sh: a server ended; all end\n")


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("vllm_sidecar.sh", ("--weights-dir", "/w"), "--model: missing"),
        ("vllm_sidecar.sh", ("--model",), "--model: a value is missing"),
        (
            "vllm_sidecar.sh",
            (*SIDECAR, "--gpus", "0,1,2", "--tensor", "2", "--dry-run"),
            "3 GPUs do not divide",
        ),
        (
            "vllm_sidecar.sh",
            (*SIDECAR, "--lora-rank", "513"),
            "--lora-rank 513: must be a whole number from 0 to 512",
        ),
        ("vllm_sidecar.sh", (*SIDECAR, "--port", "http"), "--port http: must be a whole number"),
        ("vllm_sidecar.sh", (*SIDECAR, "--gpus", "none"), "--model /m: no config.json there"),
        ("gpu_node.sh", (*NODE[:-1], "1,2"), "GPU 1 is the learner's too"),
        ("gpu_node.sh", NODE[:-2], "--server-gpus: missing"),
        (
            "gpu_node.sh",
            (*NODE, "--lora-rank", "08"),
            "--lora-rank 08: must be a whole number from 0 to 512",
        ),
        (
            "slurm.sbatch",
            (*JOB, "--nodes", "a,b", "--lora-rank", "513"),
            "--lora-rank 513: must be a whole number",
        ),
        ("tpu_pod.sh", (*POD, "--urls", "http://a:1"), "--weights-dir: missing"),
        ("tpu_pod.sh", POD[2:], "--name: missing"),
        (
            "tpu_pod.sh",
            (*POD, "--urls", "http://a:1", "--weights-dir", "/w", "--engine-urls", "http://b:1"),
            "--engine-urls: not beside --urls",
        ),
        ("tpu_engine.sh", POD[:4], "--config: missing"),
        ("tpu_engine.sh", (*POD[:6], "--port", "http"), "--port http: must be a whole number"),
        (
            "install.sh",
            ("--platform", "cuda", "--python", "python"),
            "--platform 'cuda': must be cpu, gpu or tpu",
        ),
        ("install.sh", ("--platform", "cpu"), "--python: missing"),
        ("slurm.sbatch", JOB, "--nodes: missing"),
        ("slurm.sbatch", (*JOB, "--nodes", "a,b"), "submit it with sbatch"),
        (
            "slurm.sbatch",
            (*JOB, "--dry-run", "--nodes", "a,b", "--server-nodes", "2"),
            "at least one must be left",
        ),
    ],
)
def test_what_cannot_work_is_one_line_with_the_fix(
    script: str, arguments: tuple[str, ...], says: str
) -> None:
    assert says in refused(script, *arguments)


def test_one_node_shares_its_gpus() -> None:
    *_, learner = dry("gpu_node.sh", *NODE, "--tensor", "2", "--", "--config.train.max_staleness=1")
    assert learner.startswith("env CUDA_VISIBLE_DEVICES=0\\,1 .venv/bin/python -m gigpo_jax.main ")
    assert "--config.engine.urls=http://127.0.0.1:8000\\,http://127.0.0.1:8001 " in learner
    assert learner.rstrip().endswith("--config.train.max_staleness=1")


def test_servers_and_learner_of_one_machine_name_no_folder_of_weights() -> None:
    server, *_ = dry("vllm_sidecar.sh", "--model", "/m", "--gpus", "none")
    assert f" GIGPO_WEIGHTS_DIR={local_folder()} " in server
    says = refused("vllm_sidecar.sh", "--model", "/m", "--gpus", "none", "--host", "10.0.0.1")
    assert "--weights-dir: missing" in says
    *_, learner = dry("gpu_node.sh", *NODE)
    assert "weights" not in learner


def test_a_pod_runs_the_same_command_on_all_hosts_and_the_key_stays_in_its_file() -> None:
    (line,) = dry("tpu_pod.sh", *POD, "--", "--config.mesh.fsdp=16")
    assert line.startswith("gcloud compute tpus tpu-vm ssh pod --zone z --worker=all --command ")
    assert "engine.name" not in line
    (line,) = dry(
        "tpu_pod.sh", *POD, "--urls", "http://a:1,http://b:1", "--weights-dir", "/shared/w"
    )
    assert "cat\\ ~/.gigpo_vllm_key" in line
    assert "--config.engine.name=vllm" in line


def test_a_slice_learns_from_engine_servers_on_another_one() -> None:
    command = (*POD[:6], "--host", "10.0.0.5", "--", "--config.engine.slots=64")
    flag, server = dry("tpu_engine.sh", *command)
    assert flag == "learner: --engine-urls http://10.0.0.5:8000"
    assert "--worker=0" in server
    assert "GIGPO_API_KEY=\\$\\(cat" in server
    for text in ("gigpo_jax\\ engine", "serve.host=10.0.0.5", "serve.port=8000", "engine.slots=64"):
        assert text in server
    (learner,) = dry("tpu_pod.sh", *POD, *flag.removeprefix("learner: ").split())
    assert "engine.name=jax_server" in learner
    assert "engine.urls=http://10.0.0.5:8000" in learner
    assert "GIGPO_API_KEY=\\$\\(cat" in learner


def test_a_job_learns_on_the_first_nodes_and_serves_on_the_last() -> None:
    *servers, learner = dry(
        "slurm.sbatch", *JOB, "--nodes", "a,b,c", "--gpus", "2", "--", "--config.mesh.fsdp=4"
    )
    assert len(servers) == 1
    assert "--nodelist=c launch/vllm_sidecar.sh" in servers[0]
    assert "--host c" in servers[0]
    assert learner.startswith("srun --nodes=2 --ntasks=2 --nodelist=a\\,b ")
    assert "--config.engine.urls=http://c:8000\\,http://c:8001 " in learner
    *_, learner = dry("slurm.sbatch", *JOB, "--nodes", "a", "--gpus", "4")
    assert learner.startswith("env CUDA_VISIBLE_DEVICES=0\\,1 ")


def test_every_key_that_the_scripts_set_is_there() -> None:
    known = set(KEYS)
    for script in SCRIPTS:
        words = (ROOT / "launch" / script).read_text().replace('"', " ").split()
        keys = {
            word.removeprefix("--config.").split("=")[0].rstrip(".,")
            for word in words
            if word.startswith("--config.")
        }
        assert keys <= known, keys - known


def test_a_rank_reaches_servers_and_learner_and_without_one_nothing_changes() -> None:
    node = ("--config", "c.py", "--model", "/m", "--learner-gpus", "0", "--server-gpus", "1")
    for script, arguments in (("gpu_node.sh", node), ("slurm.sbatch", (*JOB, "--nodes", "a,b"))):
        plain = dry(script, *arguments)
        adapted = dry(script, *arguments, "--lora-rank", "24")
        assert "--lora-rank 24" in "\n".join(adapted)
        assert (
            next(line for line in adapted if "gigpo_jax.main" in line).count(
                "--config.model.lora.rank=24"
            )
            == 1
        )
        assert "lora.rank" not in "\n".join(plain)
        assert "max-lora-rank" not in "\n".join(plain)
