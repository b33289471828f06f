# ruff: noqa: E501 - tables read best with a row a line
"""Operations that watchdog's code must never use, checked in its source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "watchdog_app"
# Modules whose readers execute their input, or that create predictable file names.
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "yaml",
    "joblib",
}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.spawnl", "os.spawnv",
    "subprocess.getoutput", "subprocess.getstatusoutput", "tempfile.mktemp", "pty.spawn",
    "yaml.load", "torch.load", "numpy.load", "np.load", "np.fromfile", "xml.etree.ElementTree.parse",
    "ctypes.CDLL", "runpy.run_path", "runpy.run_module", "importlib.import_module",
}  # fmt: skip
# (module below watchdog_app, operation) -> why it is safe there. An unused entry fails.
REASONS = {
    ("__init__.py", "importlib.import_module"): "a module of ours, by a fixed name",
    ("agent/found/fit_rescue.py", "importlib.import_module"): "ours, out of two",
    ("agent/adapters/keras/rescue.py", "importlib.import_module"): "ours, from the table of backends",
    ("agent/hook.py", "importlib.import_module"): "ours, from the table WATCHED_MODULES",
    ("cli/dispatch.py", "importlib.import_module"): "ours, from the table of commands",
    ("core/forecast/stages.py", "importlib.import_module"): "ours, from the table of resources",
    ("doctor/probe.py", "importlib.import_module"): "torch and jax, in a child, in the user's Python",
    ("estimate/child.py", "importlib.import_module"): "the framework, out of a fixed list",
    ("estimate/keras_subject.py", "importlib.import_module"): "keras or tf_keras, as the model has it",
    ("estimate/script.py", "importlib.import_module"): "the user's own script, named on the command line",
    ("tray/backends.py", "importlib.import_module"): "pystray's backends, out of a fixed list",
    ("base/children.py", "runpy.run_module"): "a frozen program is its own interpreter: modules of ours",
    ("agent/identity/code.py", "compile"): "compared with the function that runs, and never run",
    ("agent/telemetry/allocators.py", "ctypes.CDLL"): "CUDA's driver, only if loaded already",
    ("agent/snapshot/change_marker.py", "marshal"): "only written: to compare values bit for bit",
    ("agent/state/own_random.py", "marshal"): "only written: to see which attributes of a sampler change",
    ("rescue/identity/program_key.py", "marshal"): "only written: the code of a program read from a pipe",
    ("rescue/checkpoint/sink.py", "ctypes.CDLL"): "the C library of this very process",
    ("rescue/segment/snapshot.py", "ctypes.CDLL"): "the C library of this very process",
    ("guard/messages.py", "ctypes.CDLL"): "the C library of this very process",
    ("base/own_process.py", "ctypes.CDLL"): "the C library of this very process",
    ("base/own_process.py", "importlib.import_module"): "inspect and locale, once they are used",
    ("daemon/notify/__init__.py", "importlib.import_module"): "a module of the table of channels",
    ("machine/gpu/reader.py", "importlib.import_module"): "a module of the table of GPU vendors",
    ("machine/gpu/reader.py", "ctypes.CDLL"): "the C library of this very process",
}  # fmt: skip


def name_of(node: ast.expr) -> str:
    """Return `a.b.c` as written; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = name_of(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def uses(tree: ast.AST):
    """Return every use of the lists above, and every shell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in MODULES:
                    yield alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] in MODULES:
                yield module
            for alias in node.names:
                if f"{module}.{alias.name}" in CALLS:
                    yield f"{module}.{alias.name}"
        elif isinstance(node, ast.Call):
            called = name_of(node.func)
            if called in CALLS:
                yield called
            for word in node.keywords:
                if word.arg == "shell" and not (
                    isinstance(word.value, ast.Constant) and word.value.value is False
                ):
                    yield "shell="
                if word.arg == "allow_pickle":
                    yield "allow_pickle="


def test_nothing_runs_what_it_reads():
    """
    These are pickle, eval, shells and predictable temporary files; each exception has a reason.
    """
    found = {
        (path.relative_to(PACKAGE).as_posix(), what)
        for path in sorted(PACKAGE.rglob("*.py"))
        for what in uses(ast.parse(path.read_text()))
    }

    assert set(REASONS) == found


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import marshal as m", "eval('1')",
        "exec(text)", "import os\nos.system('x')", "import subprocess\nsubprocess.run('x', shell=True)",
        "run(x, shell=flag)", "from os import system", "import tempfile\ntempfile.mktemp()",
        "import yaml", "torch.load(path)", "np.load(p, allow_pickle=True)", "def f():\n    import shelve",
    ],
)  # fmt: skip
def test_the_search_sees_each_of_them(code):
    """Otherwise the other test could pass without checking anything."""
    assert list(uses(ast.parse(code)))


def test_every_sql_statement_is_fixed_text():
    """Values are parameters; only the code's own column names and placeholders are inserted."""
    for path in sorted((PACKAGE / "history").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in ("execute", "executemany", "executescript") or not node.args:
                continue
            text = node.args[0]
            for part in text.values if isinstance(text, ast.JoinedStr) else []:
                if isinstance(part, ast.FormattedValue):
                    shown = ast.unparse(part.value)
                    assert shown in SQL_PARTS, f"{path.name}: {shown}"
            assert isinstance(text, ast.JoinedStr | ast.Constant | ast.Name), ast.unparse(text)


# Each is a fixed name or a row of question marks; never a value from a message or a file.
SQL_PARTS = {
    "' AND '.join(where)", "what", "_SCHEMA_VERSION", "_SCHEMA", "marks", "key", "column", "table",
    "pragma", "condition",
}  # fmt: skip
