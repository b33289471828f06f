"""
What `watchdog exec` puts before a program: switches the agent on, then steps out of the way.

Python imports a module of this name at its start. The program's own, if there is one, is
imported in our place, and our folder leaves its sys.path. Runs in any Python, old ones too.
"""

import os
import sys


def _switch_on(root: str) -> None:
    try:
        from watchdog_app.agent.hook import switch_on
    except ImportError:
        # Another environment than watchdog's: only our own package is to be found from there.
        sys.path.append(root)
        try:
            from watchdog_app.agent.hook import switch_on
        finally:
            sys.path.remove(root)
    switch_on()


def _step_aside() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    if sys.version_info >= (3, 11):  # noqa: UP036 - whatever Python a script is run by
        try:
            _switch_on(os.path.dirname(os.path.dirname(os.path.dirname(here))))
        except Exception:  # noqa: S110 - the program runs, with us or without
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
    _step_aside()
