"""What clusters run: the SkyPilot task, the GKE JobSet and the image, checked by their own schemas
where they are.
"""

import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from gigpo_jax.config.keys import KEYS
from gigpo_jax.envs import registry
from tests.test_wheel import copied

pytestmark = pytest.mark.slow

TOOLS = pathlib.Path(__file__).parents[2] / ".venv-tools"
LAUNCH = pathlib.Path(__file__).parents[2] / "launch"
TASK: dict[str, Any] = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
JOBSETS: list[dict[str, Any]] = [
    yaml.safe_load((LAUNCH / name).read_text()) for name in ("gke_jobset.yaml", "gke_engines.yaml")
]


def learner(**environ: str) -> list[str]:
    """What the task runs on a node: jax's variables, then the words of the command."""
    script = (
        TASK["run"].replace("exec ", "set -- ") + "env | grep ^JAX_ | sort\nprintf '%s\\n' \"$@\""
    )
    known = (
        TASK["envs"]
        | {"PATH": os.environ["PATH"], "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
        | environ
    )
    command = ["bash", "-euc", script]
    return subprocess.run(
        command, env=known, capture_output=True, text=True, timeout=30, check=True
    ).stdout.split("\n")[:-1]


def test_the_task_runs_the_learner_alone_or_on_all_nodes() -> None:
    alone = learner(SKYPILOT_NUM_NODES="1", SKYPILOT_NODE_RANK="0")
    assert alone[:3] == [".venv/bin/python", "-m", "gigpo_jax.main"]
    assert {
        "--config=configs/alfworld.py:1.5b",
        "--workdir=/runs/alfworld",
        "--config.mesh.fsdp=8",
    } <= set(alone)
    both = learner(SKYPILOT_NUM_NODES="2", SKYPILOT_NODE_RANK="1")
    assert both[:3] == [
        "JAX_COORDINATOR_ADDRESS=10.0.0.1:8476",
        "JAX_NUM_PROCESSES=2",
        "JAX_PROCESS_ID=1",
    ]
    assert set(both[3:]) - set(alone) == {"--config.distributed=True"}


def test_every_key_that_they_set_is_there() -> None:
    words = TASK["run"].split() + TASK["envs"]["FLAGS"].split()
    for jobset in JOBSETS:
        for job in _jobs(jobset).values():
            words += _container(job)["args"]
    keys = {
        word.removeprefix("--config.").split("=")[0]
        for word in words
        if word.startswith("--config.")
    }
    assert len(keys) > 3
    options = {f"env.options.{name}" for name in registry.spec("alfworld").options}
    assert keys <= {*KEYS, *options}


def _jobs(jobset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    return job["template"]["spec"]["template"]["spec"]


def _container(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = _pod(job)["containers"]
    return container


@pytest.mark.parametrize("jobset", JOBSETS)
def test_every_host_of_the_slices_has_a_pod_with_all_of_its_chips(jobset: dict[str, Any]) -> None:
    for job in _jobs(jobset).values():
        topology = _pod(job)["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
        rows, columns = map(int, topology.split("x"))
        chips = _container(job)["resources"]["limits"]["google.com/tpu"]
        hosts = job["template"]["spec"]
        assert hosts["parallelism"] == hosts["completions"] == rows * columns / chips
        mounted = {mount["mountPath"] for mount in _container(job)["volumeMounts"]}
        paths = [arg.partition("=/")[2] for arg in _container(job)["args"] if "=/" in arg]
        assert {f"/{path.partition('/')[0]}" for path in paths} == mounted
    learner = _container(_jobs(jobset)["learner"])["args"]
    assert "--config.mesh.fsdp=16" in learner
    assert "--config.distributed=True" in learner


def test_every_host_of_the_learner_has_an_engine_server_of_the_same_model() -> None:
    jobs = _jobs(JOBSETS[1])
    learner = _container(jobs["learner"])
    server = _container(jobs["engine"])
    flags = dict(arg.split("=", 1) for arg in learner["args"] if "=" in arg)
    served = dict(arg.split("=", 1) for arg in server["args"] if "=" in arg)
    assert jobs["engine"]["replicas"] == jobs["learner"]["template"]["spec"]["parallelism"]
    # JobSet's names: JOBSET-JOB-REPLICA-POD in the domain of the JobSet.
    names = [f"gigpo-engine-{n}-0.gigpo" for n in range(jobs["engine"]["replicas"])]
    port = served["--config.serve.port"]
    assert flags["--config.engine.urls"] == ",".join(f"http://{name}:{port}" for name in names)
    assert JOBSETS[1]["metadata"]["name"] == "gigpo"
    assert served["--config.serve.host"] == "0.0.0.0"
    for key in ("--config", "--config.model.path"):
        assert flags[key] == served[key]
    assert learner["env"] == server["env"]
    assert learner["env"][0]["name"] == "GIGPO_API_KEY"
    assert JOBSETS[1]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["learner"]


def test_the_image_is_what_make_installs() -> None:
    lines = (LAUNCH / "Dockerfile").read_text().splitlines()
    (step,) = [line for line in lines if line.startswith("RUN ")]
    assert step == "RUN launch/install.sh --platform ${PLATFORM} --python python"
    assert (
        "launch/install.sh --platform cpu --python $(PY)"
        in (LAUNCH.parent / "Makefile").read_text()
    )
    kept = (LAUNCH / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{name}" for name in copied()} | {"**", "**/__pycache__"} == set(kept)
    for platform, more in (("cpu", ""), ("gpu", "jax\\[cuda13\\]"), ("tpu", "jax\\[tpu\\]")):
        command = [
            "bash",
            str(LAUNCH / "install.sh"),
            "--dry-run",
            "--platform",
            platform,
            "--python",
            "python",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert re.findall(r"requirements\.txt (.*)", done.stdout)[0].strip() == more


@pytest.mark.long
@pytest.mark.skipif(not (TOOLS / ".installed-launch").exists(), reason="needs make launch-venv")
def test_their_own_schemas_take_them_and_refuse_a_misspelt_field(tmp_path: pathlib.Path) -> None:
    for file, field in (
        ("", ""),
        ("skypilot.yaml", "num_nodes"),
        ("gke_jobset.yaml", "parallelism"),
        ("gke_engines.yaml", "successPolicy"),
    ):
        folder = shutil.copytree(LAUNCH, tmp_path / (file or "right"))
        if file:
            (folder / file).write_text(
                (LAUNCH / file).read_text().replace(f"{field}:", f"{field}_:")
            )
        command = [
            str(TOOLS / "bin/python"),
            str(pathlib.Path(__file__).with_name("schemas.py")),
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode == 0) == (not file), done.stderr
        assert field in done.stderr
