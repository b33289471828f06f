"""
Switches the agent on before a program of `watchdog exec`, then runs the program's sitecustomize.

Python imports a module of this name at its start. This one imports the program's own module in its
place, if there is one, and removes its folder from sys.path. It runs in any Python, old versions
too.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class _PackageFinder:
    """Finds the package of this installation, even if sys.path has another one of the same name."""

    def __init__(self, spec: "ModuleSpec") -> None:
        self._spec = spec

    def find_spec(self, name: str, *_: object) -> "ModuleSpec | None":
        return self._spec if name == self._spec.name else None


def _switch_on(root: str) -> None:
    from importlib.machinery import PathFinder  # importlib.util would take 5 ms

    spec = PathFinder.find_spec("watchdog_app", [root])
    if spec is None or spec.origin is None:  # it was removed, in whole or in part
        return
    finder = _PackageFinder(spec)
    sys.meta_path.insert(0, finder)
    try:
        import watchdog_app  # noqa: F401 - later imports find its parts through its own path
    finally:
        sys.meta_path.remove(finder)
    from watchdog_app.agent.hook import switch_on

    switch_on()


def _run_program_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    if sys.version_info >= (3, 11):  # noqa: UP036 - any Python may run a script
        try:
            _switch_on(os.path.dirname(os.path.dirname(os.path.dirname(here))))
        except Exception:  # noqa: S110 - the program must run without the agent
            pass
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the program's own
    except ImportError as error:
        if getattr(error, "name", None) != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if __name__ == "sitecustomize":
    _run_program_sitecustomize()
