"""The extension in a real JupyterLab: a real leak, a save, a death and a resume, with clicks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import World
from lab_page import DEFINITIONS, FIT, address, browser_page, lab, require
from real_server import JupyterServer
from support.hostile import NAMES

if TYPE_CHECKING:
    from playwright.sync_api import Page

# No JSON has half of a character.
HOSTILE = tuple(name for name in NAMES if name == name.encode("utf-8", "ignore").decode())


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory):
    require()
    with lab(tmp_path_factory.mktemp("lab")) as found:
        yield found


def notebook(server: JupyterServer, name: str, cells: tuple[str, ...], kernel: str) -> None:
    path = server.notebook(name, cells)
    content = json.loads(path.read_text())
    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    path.write_text(json.dumps({**content, "metadata": {"kernelspec": spec}}))


def order(server: JupyterServer, word: str, *, on: bool = True) -> None:
    """Order the training to do something, or to leave it."""
    path = Path(server.root, word)
    path.touch() if on else path.unlink()


def run_cells(page: Page, cells: int) -> None:
    """Run the first cells; JupyterLab drops what is run before its kernel is connected."""
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    for number in range(cells):
        cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        for _ in range(30):
            cell.locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
            page.wait_for_timeout(2000)  # a dropped cell shows [*] for a moment
            if cell.locator(".jp-InputPrompt").inner_text() != "[ ]:":
                break


@pytest.mark.cgroup
@pytest.mark.torch
def test_a_leak_is_seen_saved_and_over_and_a_death_is_resumed(
    opened: tuple[World, JupyterServer],
) -> None:
    world, server = opened
    notebook(server, "train.ipynb", (DEFINITIONS, FIT), "roomy")
    with browser_page(server) as page:
        page.goto(address(server, "train.ipynb"))
        page.wait_for_selector(".wd-status:visible")
        assert page.locator(".wd-banner:visible").count() == 0
        run_cells(page, 2)

        kernel = server.rest("GET", "api/sessions")[0]["kernel"]["id"]

        def task() -> dict:
            tasks = world.client.call("status")["tasks"]
            return next((one for one in tasks if one["kernel_id"] == kernel), {})

        world.until(lambda: (task().get("agent") or {}).get("step"), "it trains")
        page.click(".wd-status")
        page.wait_for_selector(".wd-tasks .wd-task")
        page.keyboard.press("Escape")
        page.click(".jp-Notebook .jp-CodeCell .cm-content")

        order(server, "leak")
        page.wait_for_selector(".wd-banner:visible")
        assert page.evaluate("document.activeElement.closest('.wd-banner') === null")
        assert "cm-content" in page.evaluate("document.activeElement.className")
        page.click(".wd-banner [data-action=save]")
        page.wait_for_selector(".wd-banner >> text=Save now: done.")
        assert task()["agent"]["rescue"]["step"] > 0
        page.click(".wd-banner [data-action=explain]")
        page.wait_for_selector(".jp-Dialog >> text=Limits above it")
        page.click(".jp-Dialog .jp-mod-accept")

        order(server, "leak", on=False)
        order(server, "free")
        page.wait_for_selector(".wd-banner", state="hidden")

        order(server, "die")
        page.wait_for_selector(".jp-Dialog >> text=appears to have died")
        order(server, "die", on=False)
        page.click(".jp-Dialog .jp-mod-accept")
        page.wait_for_selector(".wd-cause >> text=Killed by SIGKILL")
        page.wait_for_selector(".wd-saved >> text=is saved")
        assert "Resume" not in page.evaluate("document.activeElement.textContent")
        page.click(".jp-Dialog >> text='Resume'")
        page.wait_for_selector(".jp-Notebook >> text=resuming from")
        order(server, "end")
        page.wait_for_selector(".jp-OutputArea-output >> text=has ended")


def test_hostile_names_are_only_text(opened: tuple[World, JupyterServer]) -> None:
    """Whatever the server said: the page does not read it as HTML."""
    _, server = opened
    kernel = server.open("named.ipynb")
    name = ""
    hits: list[str] = []

    def answer(route) -> None:
        texts = dict.fromkeys(("name", "title", "reason", "memory", "saved"), name)
        one = {**texts, "level": name, "danger": True, "actions": [name]}
        state = {"daemon": True, "level": name, "headline": name, "kernels": {kernel.id: one}}
        route.fulfill(json=state)

    with browser_page(server) as page:
        page.on("dialog", lambda dialog: hits.append(dialog.message))
        page.on("request", lambda one: hits.append(one.url) if "evil" in one.url else None)
        page.clock.install()
        page.route("**/watchdog/state*", answer)
        page.goto(address(server, "named.ipynb"))
        page.wait_for_selector(".wd-banner:visible")
        page.click(".wd-status")
        page.wait_for_selector(".wd-tasks")
        for name in HOSTILE:
            for _ in range(300):
                page.clock.run_for(2100)
                if page.text_content(".wd-title") == name:
                    break
                page.wait_for_timeout(100)
            else:
                raise AssertionError(f"{name!r} is not shown")
        found = page.evaluate(
            "['.wd-banner', '.wd-tasks', '.wd-status'].map(one => [...document.querySelectorAll("
            "one + ' *')].map(each => each.tagName)).flat()"
        )

    assert len(set(HOSTILE)) >= 30
    assert {"DIV", "SPAN", "BUTTON", "B"} == set(found)
    assert [] == hits


def test_late_answers_hide_neither_the_banner_nor_the_death(
    opened: tuple[World, JupyterServer],
) -> None:
    _, server = opened
    kernel = server.open("late.ipynb")
    texts = dict.fromkeys(("name", "title", "reason", "memory", "saved"), "in danger")
    one = {**texts, "level": "warning", "danger": True, "actions": []}
    state = {"daemon": True, "level": "warning", "headline": "x", "kernels": {kernel.id: one}}
    found = {"at_unix_s": 1, "cause": "told late", "saved": "", "more": "", "can_resume": False}
    late = {"state": 0, "death": 2}  # so many answers are errors

    def answer(route) -> None:
        kind = "death" if "/death" in route.request.url else "state"
        late[kind] -= 1
        body = {"death": found} if kind == "death" else state
        error = {"status": 503, "json": {"message": "no answer yet"}}
        route.fulfill(**(error if late[kind] >= 0 else {"json": body}))

    with browser_page(server) as page:
        page.route("**/watchdog/state*", answer)
        page.route("**/watchdog/death*", answer)
        page.goto(address(server, "late.ipynb"))
        page.wait_for_selector(".wd-banner:visible")

        late["state"] = 1000
        page.wait_for_selector(".wd-banner >> text=no answer for")
        page.wait_for_selector(".wd-status >> text=no answer")
        assert page.inner_text(".wd-title") == "in danger"
        late["state"] = 0
        page.wait_for_selector(".wd-status >> text=x")
        assert "no answer" not in page.inner_text(".wd-detail")

        os.kill(kernel.pid(), signal.SIGKILL)
        page.wait_for_selector(".jp-Dialog >> text=appears to have died")
        page.click(".jp-Dialog .jp-mod-accept")
        page.wait_for_selector(".wd-death >> text=told late")
