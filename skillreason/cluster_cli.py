"""The commands about clusters: ``skillreason plan | submit | jobs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

cluster_app = typer.Typer()
jobs_app = typer.Typer(help="List, follow and stop what was submitted to a Ray cluster.", no_args_is_help=True)

ConfigArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG [KEY=VALUE]...",
        help="YAML file, or the name of one in configs/; then configuration overrides",
        show_default=False,
    ),
]
ConfigOption = Annotated[str | None, typer.Option("--config", help="the configuration, if not the first argument")]
Address = Annotated[
    str | None, typer.Option(help="Ray dashboard, such as http://HEAD:8265 (default: RAY_API_SERVER_ADDRESS)")
]


def example(text: str) -> str:
    """The example below a command's help."""
    return f"[bold]Example:[/bold] {text}"


@cluster_app.command(epilog=example("skillreason plan --config grpo_4b --gpu-memory 80"))
def plan(
    arguments: ConfigArguments = None,
    config: ConfigOption = None,
    gpu_memory: Annotated[float, typer.Option(help="memory of a GPU in GB (10^9 bytes)")] = 80.0,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of a node")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Where each role of a run goes and the memory it needs, without a cluster; exit status 1 where it does not fit."""
    from cluster.plan import print_plan
    from configs.arguments import split_arguments

    if not print_plan(*split_arguments(arguments or [], config), gpu_memory, gpus_per_node, as_json=as_json):
        raise typer.Exit(1)


@cluster_app.command(
    epilog=example("skillreason submit --address http://HEAD:8265 train grpo --config grpo_0.6b run.root=/shared/runs"),
    context_settings={"allow_interspersed_args": False},
)
def submit(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="train stage1|grpo with its arguments, or -- and any command"),
    ],
    address: Address = None,
    working_dir: Annotated[Path, typer.Option(help="folder that travels, and that the job runs in")] = Path("."),
    wheel: Annotated[Path | None, typer.Option(help="wheel of the project that travels instead of a folder")] = None,
    env_var: Annotated[
        list[str] | None, typer.Option(help="name of a variable the job gets, with its value here; may be repeated")
    ] = None,
    pip: Annotated[list[str] | None, typer.Option(help="requirement to install for the job; may be repeated")] = None,
    name: Annotated[str, typer.Option(help="id of the job (default: Ray's choice)")] = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="print the job's id and return")] = False,
) -> None:
    """Run a command as a Ray job on a cluster, follow its log and exit with its status."""
    from cluster.jobs import submit_and_follow
    from cluster.submit import Job

    job = Job(command, working_dir, wheel, env_var or [], pip or [], name)
    raise typer.Exit(submit_and_follow(job, address, wait=not no_wait))


@jobs_app.command("list", epilog=example("skillreason jobs list --address http://HEAD:8265"))
def jobs_list(address: Address = None) -> None:
    """Print the id, the status, the start and the command of every submitted job."""
    from cluster.jobs import print_jobs

    print_jobs(address)


@jobs_app.command("logs", epilog=example("skillreason jobs logs JOB_ID --address http://HEAD:8265"))
def jobs_logs(job_id: Annotated[str, typer.Argument(help="id of the job")], address: Address = None) -> None:
    """Print a job's log from its beginning, follow it to its end and exit with the job's status."""
    from cluster.jobs import follow_job

    raise typer.Exit(follow_job(job_id, address))


@jobs_app.command("stop", epilog=example("skillreason jobs stop JOB_ID --address http://HEAD:8265"))
def jobs_stop(job_id: Annotated[str, typer.Argument(help="id of the job")], address: Address = None) -> None:
    """Ask a job to stop; training finishes its update and writes a checkpoint first."""
    from cluster.jobs import stop

    stop(job_id, address)
