"""
The extension of a Jupyter server: what the daemon says about the kernels of that server.

The part in the browser is in packaging/jupyterlab. The configuration of the server names this
package in every environment that has watchdog, so importing it needs nothing of Jupyter.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "watchdog_app.jupyter"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """
    Add the addresses below /watchdog to a running server.

    Args:
        server: jupyter_server's `ServerApp`.
    """
    try:
        from watchdog_app.jupyter import handlers
    except ImportError as error:
        server.log.warning(f"watchdog: JupyterLab shows nothing of it, because of: {error}")
        return
    handlers.add_to(server.web_app)
