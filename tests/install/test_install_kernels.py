"""`watchdog agent enable` and `%load_ext watchdog_app.agent` in real kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig

import pytest
from real_kernel import kernel
from support.finished import finished

from watchdog_app.install import trust

IS_ON = (
    "import sys; print('ON' if 'watchdog_app.agent.hook' in sys.modules"
    " and sys.modules['watchdog_app.agent.hook'].is_on() else 'OFF')"
)


@pytest.fixture
def environment(tmp_path):
    """A virtual environment that finds this environment's packages; yields its folder."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    with open(os.path.join(site, "others.pth"), "w") as file:
        # addsitedir also reads their .pth files.
        file.write(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder


@pytest.fixture
def watchdog(tmp_path):
    def run(*words, **env):
        own = {"WATCHDOG_STATE_DIR": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}
        return finished(
            [sys.executable, "-m", "watchdog_app", "agent", *words],
            timeout=120,
            env={**os.environ, **own, **env},
        )

    return run


def tree(folder):
    return sorted(
        os.path.join(at, name)
        for at, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if "__pycache__" not in os.path.join(at, name)
    )


def test_an_enabled_environment_has_the_agent_in_each_new_kernel(environment, watchdog, tmp_path):
    """After disable no new kernel has the agent, and every file and folder is as before."""
    python = environment / "bin" / "python"
    before = tree(environment)

    enabled = watchdog("enable", "--python", str(python))
    assert (0, "") == (enabled.returncode, enabled.stderr)
    with kernel(python, tmp_path) as started:
        assert "ON\n" == started.run(IS_ON)
        assert "False\n" == started.run("print('_watchdog_agent' in globals())")
    status = json.loads(watchdog("status", "--python", str(python), "--json").stdout)
    assert [True] == [one["on"] for one in status["environments"]]

    disabled = watchdog("disable", "--python", str(python))

    assert (0, "") == (disabled.returncode, disabled.stderr)
    assert before == tree(environment)
    assert [] == tree(tmp_path / "state")
    with kernel(python, tmp_path) as started:
        assert "OFF\n" == started.run(IS_ON)


def test_a_startup_file_whose_watchdog_is_gone_says_nothing(tmp_path):
    """Its environment was removed; kernels start as usual."""
    text = trust.startup_file().decode().replace(os.getcwd(), "/gone")
    root = os.path.dirname(os.path.dirname(os.path.dirname(trust.__file__)))
    (tmp_path / "s.py").write_text(text.replace(root, "/gone"))

    done = finished([sys.executable, "-I", "-S", str(tmp_path / "s.py")], check=True)

    assert ("", "") == (done.stdout, done.stderr)


def test_the_user_profile_is_undone_as_well(watchdog, tmp_path):
    """The option --user covers every environment."""
    file = tmp_path / "home/.ipython/profile_default/startup/90-watchdog.py"

    first, second = watchdog("enable", "--user"), watchdog("enable", "--user")
    assert file.read_bytes() == trust.startup_file()
    watchdog("disable", "--user")

    assert "Saving is on in every environment of yours" in first.stdout
    assert "Saving is on already" in second.stdout
    assert not (tmp_path / "home").exists()


def test_a_file_that_somebody_changed_is_left_to_them(watchdog, tmp_path):
    """Neither enable nor disable overwrites or removes it."""
    file = tmp_path / "home/.ipython/profile_default/startup/90-watchdog.py"
    watchdog("enable", "--user")
    file.write_text("mine = 1")

    again, gone = watchdog("enable", "--user"), watchdog("disable", "--user")

    assert (1, 0) == (again.returncode, gone.returncode)
    assert "Move it away: mv " in again.stderr
    assert "was changed by somebody" in gone.stdout
    assert "mine = 1" == file.read_text()


def test_what_another_watchdog_has_placed_is_not_said_to_be_off(watchdog, tmp_path):
    """Another one keeps its list elsewhere."""
    watchdog("enable", "--user")

    stays = watchdog("disable", "--user", WATCHDOG_STATE_DIR=str(tmp_path / "other"))

    assert (1, True) == (stays.returncode, "still on" in stays.stderr)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["enable", "--kernel", "nosuch"], 2, "There is no kernel nosuch"),
        (["enable", "--python", "/nosuch/python"], 2, "There is no program"),
        (["enable", "--python", "/bin/true"], 1, "is no Python, or it does not start"),
        (["enable", "--python", "/bin/ls"], 1, "is no Python, or it does not start"),
        (["enable", "--json"], 2, "--json belongs to"),
        (["enable", "--user", "--kernel", "x"], 2, "not allowed with"),
        (["switch"], 2, "invalid choice"),
    ],
)
def test_what_cannot_be_enabled_is_refused_in_words(watchdog, words, code, said):
    """The command changes nothing."""
    done = watchdog(*words)

    assert code == done.returncode
    assert said in done.stderr


def test_disabling_what_was_never_on_changes_nothing(environment, watchdog):
    """The command says so."""
    done = watchdog("disable", "--python", str(environment / "bin" / "python"))

    assert (0, True) == (done.returncode, "Nothing was changed" in done.stdout)


TRAIN = """
import os, signal, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(3)
tf.config.experimental.enable_op_determinism()
class Killer(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        if os.path.exists("kill") and (self.epoch, batch) == (2, 3):
            added = sys._getframe(1).f_locals["self"].callbacks[0]
            added.save("as the daemon would ask")
            os.kill(os.getpid(), signal.SIGKILL)
x = np.random.default_rng(1).normal(size=(256, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16),
                          keras.layers.Dropout(0.3), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, x[:, :1], 32, 4, verbose=0, callbacks=[Killer()])
print("LOSSES", *[float(loss).hex() for loss in history.history["loss"]])
"""


def losses(text):
    lines = [line for line in text.splitlines() if line.startswith("LOSSES")]
    assert 1 == len(lines), text
    return lines[0]


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_a_killed_kernel_goes_on_from_its_very_batch_without_a_word_in_its_code(tmp_path):
    """
    The losses equal those of a training without the agent, bit for bit, with and without a kill.
    """
    env = {
        "JPY_SESSION_NAME": str(tmp_path / "deep.ipynb"),
        "WATCHDOG_RUNTIME_DIR": str(tmp_path / "no-daemon"),
        "WATCHDOG_AGENT_STRICT": "1",
    }
    with kernel(sys.executable, tmp_path, **env) as started:
        without = losses(started.run(TRAIN))
        said = started.run("%load_ext watchdog_app.agent")
        assert "rescues/deep.ipynb" in said
        assert 1 == len(said.splitlines())
        (tmp_path / "kill").touch()
        assert "LOSSES" not in started.run(TRAIN)
        assert not started.is_alive()
    (tmp_path / "kill").unlink()

    with kernel(sys.executable, tmp_path, **env) as started:
        started.run("%load_ext watchdog_app.agent")
        text = started.run(TRAIN)
        assert "step 19, epoch 3, after batch 3" in text
        assert without == losses(text)
        text = started.run(TRAIN)
        assert "resuming from" not in text
        assert without == losses(text)
        restored = started.run(
            "from keras.src.callbacks.callback_list import CallbackList as c\n"
            "with_it = c.__init__\n"
            "%unload_ext watchdog_app.agent\n"
            "print(with_it.__wrapped__ is c.__init__)"
        )
        assert "True\n" == restored

    rescues = os.listdir(tmp_path / "rescues" / "deep.ipynb")
    assert 1 == len([name for name in rescues if name.startswith("rescue-")])


def test_a_python_may_be_named_from_the_folder_it_lies_in(environment, watchdog, monkeypatch):
    """The path may be relative or go through a link."""
    monkeypatch.chdir(environment.parent)

    done = watchdog("enable", "--python", "venv/bin/python")

    assert (0, "") == (done.returncode, done.stderr)
    assert (environment / "etc/ipython/startup/90-watchdog.py").exists()
