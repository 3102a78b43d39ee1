from trainer.panels import MOST_LINES, PANELS, drawn


def test_a_run_has_the_panels_of_what_it_measured() -> None:
    supervised = drawn(["loss", "learning_rate", "step", "loss/ce"])
    assert [one.title for one in supervised] == ["Loss", "Loss by component", "Learning rate"]
    assert supervised[1].lines == (("loss/ce", "ce"),)
    sampled = {one.title: one.lines for one in drawn(["rl/entropy", "reward/a/b", "reward"])}
    assert sampled == {
        "Reward": (("reward", "mean"),),
        "Reward by slice": (("reward/a/b", "a/b"),),
        "Entropy": (("rl/entropy", "rl"),),
    }


def test_panels_are_bounded_and_called_apart() -> None:
    (panel,) = drawn([f"reward/{number:03d}" for number in range(99)])
    assert len(panel.lines) == MOST_LINES
    assert len({one.title for one in PANELS}) == len(PANELS)
