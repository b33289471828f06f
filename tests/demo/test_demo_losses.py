"""The losses that the demo reads from a training, and the demo's verdict."""

from __future__ import annotations

from watchdog_app.demo.story import different_steps, read_losses


def line(step: int, loss: float) -> str:
    return f"{step},{loss.hex()},{loss:.4f},1000.5\n"


def test_a_step_trained_again_counts_as_it_came_out_last(tmp_path):
    """After a rescue the training writes the same step twice; the second value counts."""
    path = tmp_path / "losses.csv"
    path.write_text(line(1, 0.5) + line(2, 0.25) + line(2, 0.125))

    found = read_losses(str(path))

    assert [1, 2] == sorted(found)
    assert (0.125).hex() == found[2].exact


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    """A killed training may leave an incomplete last line."""
    path = tmp_path / "losses.csv"
    path.write_text(line(1, 0.5) + "2,0x1.0p")

    assert [1] == sorted(read_losses(str(path)))


def test_a_file_that_is_not_there_yet_holds_no_losses(tmp_path):
    """The script may not have reached its first step."""
    assert {} == read_losses(str(tmp_path / "nothing"))


def test_one_bit_of_difference_is_told(tmp_path):
    """The demo compares losses bit for bit, even if they print alike."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text(line(1, 0.5) + line(2, 0.1) + line(3, 0.2))
    b.write_text(line(1, 0.5) + line(2, 0.1 + 2**-55))

    assert [2, 3] == different_steps(read_losses(str(a)), read_losses(str(b)))
    assert [] == different_steps(read_losses(str(b)), read_losses(str(b)))
