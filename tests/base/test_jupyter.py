"""The notebooks that a Jupyter command line runs."""

from __future__ import annotations

import pytest

from watchdog_app.base.jupyter import notebook_arguments


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python /b/papermill in.ipynb out.ipynb -p a 1", ("in.ipynb",)),
        ("python -m papermill in.ipynb out.ipynb", ("in.ipynb",)),
        ("python /b/jupyter-execute a.ipynb", ("a.ipynb",)),
        ("python /b/jupyter-execute --output=out.ipynb a.ipynb", ("a.ipynb",)),
        ("python /b/jupyter-nbconvert --execute a.ipynb b.ipynb", ("a.ipynb", "b.ipynb")),
        ("python /b/jupyter-nbconvert --execute --output out.ipynb a.ipynb", ("a.ipynb",)),
        ("python /b/nbconvert --output=x.ipynb a.ipynb", ("a.ipynb",)),
        ("python /b/pytest --nbmake tests", ()),
    ],
)
def test_command_lines_name_the_notebooks_they_run(command: str, expected: tuple[str, ...]):
    """Options and their values are not notebooks; papermill only writes its second one."""
    assert expected == notebook_arguments(command.split())
