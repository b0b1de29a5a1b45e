"""kvcore eval: what formats cost in attention error, in what a model says, and in recall."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kvcore
from kvcore.cli import live, show
from kvcore.cli.lab_options import (
    Arms,
    GgufFile,
    ModelName,
    Resume,
    check_outputs,
    decimals,
    facts,
    listed,
    load_model,
    numbers,
    print_section,
    require_lab,
)
from kvcore.cli.options import BackendName, Json

if TYPE_CHECKING:
    from kvcore.lab.tables import Section

NAME = "eval"
EXAMPLES = {
    "error": "kvcore eval error smollm2.safetensors --arm q4_0:bare --arm q2k",
    "kl": "kvcore eval kl --model smollm2 --texts chat-cache,doc-strings --arm q2k",
    "recall": "kvcore eval recall --model smollm2 --arm q4_0 --arm q2k",
}

app = typer.Typer(help="Measure formats on a real model: error, KL, recall.", no_args_is_help=True)


@app.command(name="error", epilog=f"Example: {EXAMPLES['error']}")
def error(
    dump: Annotated[Path, typer.Argument(help="A file that kvcore dump wrote.")],
    arm: Arms = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Such as 0,3; all if unset.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            help="A dump of another text: its mean K is the calibrated centre.",
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append/--no-append", help="Append patterns too.")
    ] = True,
    flat: Annotated[
        bool, typer.Option("--flat/--no-flat", help="The synthetic flat readers' table too.")
    ] = True,
    backend: BackendName = None,
    resume: Resume = None,
    json: Json = False,
) -> int:
    """Measure attention error, score slope, window bias and append patterns on a dump.

    Arms are those of the error tables; score slopes and window bias are always of bare formats,
    append patterns of q2k.
    """
    chosen_layers = numbers("--layers", layers)
    check_outputs("eval error", file=resume)
    from kvcore.lab.arms import parse_arms
    from kvcore.lab.dump_file import read_dump
    from kvcore.lab.error_suite import ErrorSuite
    from kvcore.lab.error_tables import error_section
    from kvcore.lab.journal import Journal, versions

    be = kvcore.get_backend(backend)
    found = read_dump(dump)
    chosen = None if arm is None else parse_arms(arm)
    with live.progress() as report:
        suite = ErrorSuite(
            found,
            be,
            Journal(resume),
            layers=chosen_layers,
            calibration=None if calibration is None else read_dump(calibration),
            progress=report,
        )
        results = suite.run(chosen, append=append, flat=flat)
    section = error_section(results, found.meta)
    if json:
        data = {"dump": asdict(found.meta), "backend": be.name, "versions": versions()}
        show.as_json({**facts(section), **data, **asdict(results)})
    else:
        print_section(section)
    return 0


@app.command(name="kl", epilog=f"Example: {EXAMPLES['kl']}")
def kl(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Two files of --save-logits to compare instead; the exact run first."),
    ] = None,
    model: ModelName = "smollm2",
    gguf: GgufFile = None,
    arm: Arms = None,
    texts: Annotated[
        str | None, typer.Option("--texts", help="Names or files, comma-separated; nine if unset.")
    ] = None,
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Prompt tokens at most.")] = 1024,
    forced: Annotated[int, typer.Option("--forced", min=1, help="Forced tokens.")] = 128,
    mode: Annotated[
        str, typer.Option("--mode", help="decode, or prompt: every cell read as stored.")
    ] = "decode",
    baseline: Annotated[str, typer.Option("--baseline", help="The arm others are held to.")] = "",
    gain: Annotated[
        str | None, typer.Option("--gain", help="Sweep the K gain of q2k, such as 1.05,1.1.")
    ] = None,
    window: Annotated[
        str | None, typer.Option("--window", help="Sweep the window, such as 0,128,1024.")
    ] = None,
    sinks: Annotated[
        str | None, typer.Option("--sinks", help="Sweep the sinks, such as 0,4,8,64.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="The format that is swept; q2k if unset.")
    ] = None,
    save_logits: Annotated[
        Path | None, typer.Option("--save-logits", help="A folder for every run's logits.")
    ] = None,
    backend: BackendName = None,
    resume: Resume = None,
    json: Json = False,
) -> int:
    """Measure KL, agreement and score of a teacher-forced run against float16 caches."""
    if files:
        asked: dict[str, Any] = {"--arm": arm, "--texts": texts, "--gain": gain, "--window": window}
        asked |= {"--sinks": sinks, "--sweep": sweep, "--save-logits": save_logits}
        return _compare(files, [name for name, value in asked.items() if value is not None], json)
    chosen = None if texts is None else listed("--texts", texts, "names or files")
    check_outputs("eval kl", file=resume, folder=save_logits)
    require_lab("eval kl")
    names = _kl_arms(arm, sweep, gain, window, sinks)
    if baseline and baseline not in names:
        names.insert(0, baseline)
    section = _run_kl(
        names,
        model=model,
        gguf=gguf,
        texts=chosen,
        plan=(prompt, forced, _mode(mode)),
        save=save_logits,
        backend=backend,
        resume=resume,
        baseline=baseline or names[0],
    )
    show.as_json(facts(section)) if json else print_section(section)
    return 0


def _kl_arms(
    arm: list[str] | None,
    sweep: str | None,
    gain: str | None,
    window: str | None,
    sinks: str | None,
) -> list[str]:
    """Return the arms given and swept; the usual ones if there are none."""
    from kvcore.lab.kl_tables import KL_ARMS, sweep_arms

    if sweep is not None and gain is window is sinks is None:
        raise typer.BadParameter(
            f"--sweep {sweep}: got nothing to sweep, expected --gain, --window or --sinks beside it"
        )
    swept = sweep_arms(
        sweep or "q2k",
        gains=decimals("--gain", gain),
        windows=numbers("--window", window) or [],
        sinks=numbers("--sinks", sinks) or [],
    )
    names = list(arm or ([] if swept else KL_ARMS))
    return names + [name for name in swept if name not in names]


def _mode(mode: str) -> str:
    from kvcore.lab.eval_kl import MODES

    if mode not in MODES:
        raise typer.BadParameter(f"--mode: got {mode!r}, expected {' or '.join(MODES)}")
    return mode


def _run_kl(
    names: list[str],
    *,
    model: str,
    gguf: Path | None,
    texts: list[str] | None,
    plan: tuple[int, int, str],
    save: Path | None,
    backend: str | None,
    resume: Path | None,
    baseline: str,
) -> Section:
    from kvcore.lab import texts as library
    from kvcore.lab.arms import parse_arms
    from kvcore.lab.journal import Journal
    from kvcore.lab.kl_suite import KlSuite, Plan
    from kvcore.lab.kl_tables import kl_section

    arms = parse_arms(names)
    with live.progress() as report:
        loaded = load_model(model, gguf, report)
        chosen = [
            library.text(n, loaded.metadata) for n in (library.names() if texts is None else texts)
        ]
        calibration = library.text(library.CALIBRATION, loaded.metadata)
        suite = KlSuite(
            loaded,
            kvcore.get_backend(backend),
            # Known results write no logits, so a run that saves them measures all.
            Journal(None if save else resume),
            calibration=calibration,
            save=save,
            progress=report,
        )
        how = Plan(n_prompt=plan[0], n_forced=plan[1], mode=plan[2])
        runs, setup = suite.run(chosen, arms, how), suite.setup(chosen, arms, how)
    c = loaded.model.config
    sizes = {a.name: a.bytes_per_cell(c.n_kv_heads, c.head_dim) for a in arms}
    return kl_section(runs, sizes, chosen, baseline, plan[2], setup)


@app.command(name="recall", epilog=f"Example: {EXAMPLES['recall']}")
def recall(
    model: ModelName = "smollm2",
    gguf: GgufFile = None,
    arm: Arms = None,
    text: Annotated[
        str, typer.Option("--text", help="What the documents are made of: a name or a file.")
    ] = "doc-statements",
    lengths: Annotated[
        str, typer.Option("--lengths", help="Document lengths in tokens.")
    ] = "512,1536",
    facts_per_place: Annotated[
        int, typer.Option("--facts", min=1, max=3, help="Facts of each kind at every depth.")
    ] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of keys, codes and words.")] = 0,
    backend: BackendName = None,
    resume: Resume = None,
    json: Json = False,
) -> int:
    """Ask for codes and word lists hidden in a document, float16 beside every arm."""
    sizes = numbers("--lengths", lengths) or []
    check_outputs("eval recall", file=resume)
    require_lab("eval recall")
    from kvcore.lab import texts as library
    from kvcore.lab.arms import parse_arms
    from kvcore.lab.journal import Journal
    from kvcore.lab.recall_suite import RecallSuite
    from kvcore.lab.recall_tables import recall_section
    from kvcore.lab.report_plan import QUICK

    arms = parse_arms(arm or list(QUICK.recall_arms))
    with live.progress() as report:
        loaded = load_model(model, gguf, report)
        body = library.text(text, loaded.metadata)
        suite = RecallSuite(
            loaded,
            kvcore.get_backend(backend),
            Journal(resume),
            body,
            per_place=facts_per_place,
            seed=seed,
            progress=report,
        )
        section = recall_section(suite.run(sizes, arms), body.name, suite.origin())
    show.as_json(facts(section)) if json else print_section(section)
    return 0


def _compare(files: list[Path], asked: list[str], json: bool) -> int:
    if len(files) != 2:
        raise typer.BadParameter(f"two files of logits: got {len(files)}, expected 2")
    if asked:
        what = "files are compared as they are"
        raise typer.BadParameter(f"{what}: got {', '.join(asked)} beside them, expected none")
    from kvcore.lab.divergence import summarize
    from kvcore.lab.eval_kl import compare_files
    from kvcore.lab.kl_tables import files_section
    from kvcore.lab.logits_file import read_logits

    exact, other = (read_logits(f) for f in files)
    section = files_section(exact.meta, other.meta, summarize([compare_files(exact, other)]))
    show.as_json(facts(section)) if json else print_section(section)
    return 0
