"""Secrets do not reach a journal, a notice or a command line of watchdog."""

from __future__ import annotations

import pytest

from watchdog_app.base.text.plain import redact, redact_argv


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--token", "x1"], ["--token", "***"]),
        (["--hf_token=x1"], ["--hf_token=***"]),
        (["--wandbApiKey", "x1"], ["--wandbApiKey", "***"]),
        (["--aws-secret-access-key", "x1"], ["--aws-secret-access-key", "***"]),
        (["-password", "x1"], ["-password", "***"]),
        (["WANDB_API_KEY=x1", "run"], ["WANDB_API_KEY=***", "run"]),
        (["trainer.logger.api_key=x1"], ["trainer.logger.api_key=***"]),
        (["hf_abcdefghijklmnop"], ["***"]),
        (["sk-proj-abcdefghijklmnop"], ["***"]),
        (["postgres://me:x1@host/db"], ["postgres://***@host/db"]),
        (["https://host/?token=x1&a=1"], ["https://host/?token=***&a=1"]),
        # Words that only resemble a secret.
        (["--tokenizer", "bert-base"], ["--tokenizer", "bert-base"]),
        (["--max-tokens", "512"], ["--max-tokens", "512"]),
        (["--sort-key", "loss"], ["--sort-key", "loss"]),
        (["--author", "me"], ["--author", "me"]),
        (["--no-auth", "train"], ["--no-auth", "train"]),
        (["data/token/train.txt"], ["data/token/train.txt"]),
        (["--token", "--lr", "1"], ["--token", "--lr", "1"]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(words, expected):
    """The name of an option or the form of a word marks a secret; the rest stays."""
    assert expected == redact_argv(words)


@pytest.mark.parametrize(
    "text",
    [
        "401 for https://u:x1y2@host/a", "bad token=x1y2", 'got {"api_key": "x1y2"}',
        "password: x1y2", "Authorization token: Bearer x1y2",
    ],
)  # fmt: skip
def test_the_text_of_an_error_loses_its_secrets(text):
    """The text goes into the journal and onto the screen."""
    assert "x1y2" not in redact(text)


def test_a_usual_text_stays_as_it_is():
    text = "Expected 3 tokens, got key 'loss' and password-free secrets"

    assert text == redact(text)
