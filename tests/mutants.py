"""Mutation testing: change one thing in a module and see whether the module's tests notice. docs/mutants.md lists what they miss.

`make mutants` runs this on a sample that a fixed seed draws. mutmut decides what can be changed, and how. It does not run the
tests here: it skips decorated functions (`Trial.digest`, `dev_pr_auc`), draws no samples, and runs every test that reaches a
function. Each mutant here is a file in a copy of the project, tested by a process that is forked from one which has loaded torch.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# (mutmut and libcst come with the extra `mutants`)

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "docs/mutants.md"
SEED, SAMPLE, WANTED = 20, 30, 0.9
# Name → file of pipeline/, and its tests, the fastest first: a mutant's run ends with the first test that fails. The name is part
# of what draws the sample, so a file may move without drawing another one.
TESTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gaussian": ("gaussian/distribution", ("gaussian/test_distribution.py",)),
    "pairwise": ("gaussian/pairwise", ("gaussian/test_distribution.py",)),
    "objectives": ("objectives/gaussian", ("objectives/test_gaussian.py", "distributed/test_golden.py")),
    "blocks": (
        "objectives/candidates",
        ("objectives/test_gaussian.py", "objectives/test_simcse.py", "distributed/test_golden.py"),
    ),
    "step": ("training/step", ("training/test_step.py", "distributed/test_golden.py")),
    "batching": ("objectives/batch_sampler", ("objectives/test_batch_sampler.py",)),
    "evaluation": ("evaluation/evaluator", ("evaluation/test_evaluator.py",)),
    "metrics": ("evaluation/metrics", ("evaluation/test_metrics.py",)),
    "bootstrap": ("evaluation/bootstrap", ("evaluation/test_bootstrap.py",)),
    "promotion": ("registry/promotion", ("registry/test_promotion.py",)),
    "scoring": (
        "evaluation/score_cache",
        (
            "evaluation/test_score_cache.py",
            "evaluation/test_evaluator.py",
            "identity/test_reuse.py",
            "registry/test_version_scorer.py",
        ),
    ),
    "search": ("inference/entailment_index", ("inference/test_entailment_index.py",)),
    "search_vectors": ("inference/index_vectors", ("inference/test_index_vectors.py", "inference/test_entailment_index.py")),
    "trial": (
        "trials/trial",
        (
            "trials/test_trial.py",
            "identity/test_digests.py",
            "identity/test_reuse.py",
            "trials/test_outcome.py",
            "training/test_trainer.py",
        ),
    ),
}
# Loaded once; forked processes have them.
_LOADED = ("torch", "transformers", "pyarrow.parquet", "scipy.stats", "sklearn.metrics", "hypothesis", "pydantic", "tqdm")


def _file(module: str) -> str:
    return f"pipeline/{TESTS[module][0]}.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A module with one change."""

    module: str
    function: str
    line: int
    old: str
    new: str
    """The lines that differ, in one."""
    source: str
    """The whole module."""

    @property
    def file(self) -> str:
        """Relative to the project."""
        return _file(self.module)

    @property
    def change(self) -> str:
        """Its entry in docs/mutants.md."""
        return f"`{self.old}` → `{self.new}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    mutant: Mutant
    copy: Path
    began: float
    limit: float


class _Visitor(MutationVisitor):
    """mutmut's visitor, but also for decorated functions: with one file for each mutant they need none of mutmut's wrappers."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.FunctionDef) and super()._skip_node_and_children(node)


class _Functions(cst.CSTVisitor):
    """The dotted name of the function or method that each node is in; nodes outside of functions are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.within: list[str] = []
        self.depth = 0
        self.of: dict[cst.CSTNode, str] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self.depth:
            self.of[node] = ".".join(self.within)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.within.append(node.name.value)
            self.depth += isinstance(node, cst.FunctionDef)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
            self.within.pop()
            self.depth -= isinstance(original_node, cst.FunctionDef)


def sample_of(module: str, size: int) -> list[Mutant]:
    """Up to `size` mutants of the functions of a module of `TESTS`.

    They are drawn by their own hashes: a changed function draws other ones, and the rest stay as they are. Mutants that any test
    notices are left out (`_ends_in_an_error`).
    """
    source = (ROOT / _file(module)).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor, functions = _Visitor(mutation_operators, IgnoredCode(set(), set(), set())), _Functions()
    wrapper.visit(visitor)
    wrapper.visit(functions)
    places: Any = wrapper.resolve(PositionProvider)
    drawn: dict[str, tuple[str, Any]] = {}
    for mutation in visitor.mutations:
        original, changed = mutation.original_node, mutation.mutated_node
        function = functions.of.get(original)
        if function is None or _ends_in_an_error(original, changed):
            continue
        key = f"{SEED} {module} {function} {wrapper.module.code_for_node(original)} {wrapper.module.code_for_node(changed)}"
        while (digest := hashlib.sha256(key.encode()).hexdigest()) in drawn:
            # The same change elsewhere in the function.
            key += " again"
        drawn[digest] = function, mutation
    found: list[Mutant] = []
    for digest in sorted(drawn):
        if len(found) == size:
            break
        function, mutation = drawn[digest]
        whole: Any = deep_replace(wrapper.module, mutation.original_node, mutation.mutated_node)
        if whole.code != source and _compiles(whole.code):
            old, new = _difference(source.splitlines(), whole.code.splitlines())
            line = places[mutation.original_node].start.line
            found.append(Mutant(module=module, function=function, line=line, old=old, new=new, source=whole.code))
    return found


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    """The lines between the first and the last that differ, in one."""
    shortest = min(len(before), len(after))
    start = next(k for k in range(shortest + 1) if before[k : k + 1] != after[k : k + 1])
    end = next(k for k in range(shortest + 1) if k == shortest - start or before[-1 - k] != after[-1 - k])
    old, new = (" ".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (before, after))
    return old, new


def _ends_in_an_error(original: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether it only puts None in place of a value, or leaves out a positional argument: any test that gets there is stopped."""
    if isinstance(original, cst.Call) and isinstance(changed, cst.Call):
        if len(changed.args) < len(original.args):
            return next(a for a in original.args if a not in changed.args).keyword is None
        return any(_is_none(b.value) and not _is_none(a.value) for a, b in zip(original.args, changed.args, strict=True))
    return isinstance(changed, (cst.Assign, cst.AnnAssign)) and changed.value is not None and _is_none(changed.value)


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _copy_project(to: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def _forked(copy: Path, module: str, log: Path, *, write_bytecode: bool) -> int:
    """Start the tests of a module in a copy of the project; the number of the process."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(copy)
    with log.open("wb") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    # A mutant may have the size and the (coarse) time stamp of another: their bytecode would be mixed up.
    if not write_bytecode:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() not in (ROOT, ROOT / "tests")]
    files = [f"tests/{name}" for name in TESTS[module][1]]
    code = 3
    with contextlib.suppress(BaseException):
        code = int(pytest.main(["-x", "-p", "no:xdist", "--hypothesis-seed=0", *files]))
    sys.stdout.flush()
    os._exit(code)


def _ended(pid: int, began: float, limit: float) -> int | None:
    """The exit status of a process, −1 where it took too long; None while it runs. Nothing of it is left after that."""
    done, status = os.waitpid(pid, os.WNOHANG)
    late = time.monotonic() - began > limit
    if not done and not late:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not done:
        os.waitpid(pid, 0)
        return -1
    return os.waitstatus_to_exitcode(status)


def _baseline(copy: Path, module: str) -> float:
    """Seconds that the unchanged module's tests take. It also leaves the bytecode of everything but the modules that change."""
    log, began = copy.parent / f"{module}.log", time.monotonic()
    pid = _forked(copy, module, log, write_bytecode=True)
    while (code := _ended(pid, began, 600)) is None:
        time.sleep(0.02)
    if code:
        raise SystemExit(f"{log.read_text(errors='replace')}\n{module}: its tests fail without a mutant (exit status {code})")
    path = copy / _file(module)
    for file in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        file.unlink()
    return time.monotonic() - began


def survivors_of(mutants: Sequence[Mutant], jobs: int, *, verbose: bool = False) -> list[Mutant]:
    """The mutants that no test noticed."""
    survived: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Path(folder) / str(k) / "project" for k in range(jobs)]
        _copy_project(copies[0])
        limits = {module: 10 + 5 * _baseline(copies[0], module) for module in dict.fromkeys(m.module for m in mutants)}
        originals = {module: (copies[0] / _file(module)).read_text(encoding="utf-8") for module in limits}
        for copy in copies[1:]:
            shutil.copytree(copies[0], copy)
        waiting, idle, running = list(reversed(mutants)), copies, dict[int, _Running]()
        while waiting or running:
            while waiting and idle:
                mutant, copy = waiting.pop(), idle.pop()
                (copy / mutant.file).write_text(mutant.source, encoding="utf-8")
                pid = _forked(copy, mutant.module, copy.parent / "log", write_bytecode=False)
                running[pid] = _Running(mutant=mutant, copy=copy, began=time.monotonic(), limit=limits[mutant.module])
            for pid, run in list(running.items()):
                code = _ended(pid, run.began, run.limit)
                if code is None:
                    continue
                del running[pid]
                idle.append(run.copy)
                name = run.mutant.file
                (run.copy / name).write_text(originals[run.mutant.module], encoding="utf-8")
                if code == 0:
                    survived.append(run.mutant)
                if verbose or code not in (0, 1, 2, -1):
                    said = {0: "survived", -1: "killed (too slow)"}.get(code, f"killed ({code})")
                    print(
                        f"{time.monotonic() - run.began:5.1f} s {said}: {name}:{run.mutant.line} {run.mutant.change}", flush=True
                    )
            time.sleep(0.02)
    return sorted(survived, key=lambda m: (m.module, m.line))


def main(arguments: Sequence[str] | None = None) -> int:
    """Test a sample of each module; 1 if too few are killed, or a survivor has no reason in docs/mutants.md."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE", help=f"of {', '.join(TESTS)}; default all")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"mutants of each module (default {SAMPLE})")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default 2)")
    parser.add_argument("--verbose", action="store_true", help="say what became of each")
    given = parser.parse_args(arguments)
    if unknown := set(given.modules) - set(TESTS):
        parser.error(f"no tests are listed for {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _LOADED:
        importlib.import_module(name)
    listed = LISTED.read_text(encoding="utf-8")
    good = True
    for module in given.modules:
        began, mutants = time.monotonic(), sample_of(module, given.sample)
        survived = survivors_of(mutants, given.jobs, verbose=given.verbose)
        killed = len(mutants) - len(survived)
        print(f"{module}: {killed} of {len(mutants)} killed, {time.monotonic() - began:.0f} s", flush=True)
        for mutant in survived:
            known = mutant.change in listed
            note = "" if known else "   <- not in docs/mutants.md: write a test, or the reason why there can be none"
            print(f"  {mutant.file}:{mutant.line} {mutant.function}: {mutant.change}{note}", flush=True)
            good &= known
        if killed < WANTED * len(mutants):
            print(f"  fewer than {100 * WANTED:g} %", flush=True)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
