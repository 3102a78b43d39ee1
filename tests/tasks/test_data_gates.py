"""What a dataset before its gates is told."""


def test_of_too_few_rows_it_is_said_which_rule_took_most() -> None:
    from flywheel.lineage import Dataset, RuleCount
    from tasks.data_gates import _taken

    counts = (
        RuleCount(rule="leakage", rows_in=40, rows_out=39),
        RuleCount(rule="min_reward", rows_in=39, rows_out=2),
    )
    made = Dataset(id="d", project="inbox", path="p", rows=2, rules=counts)
    assert _taken(made, 8) == [
        "most went by the rule min_reward, 37 of 39 rows: `flywheel curate inbox --preview` shows "
        "which"
    ]
    assert _taken(made, 2) == [] == _taken(Dataset(id="d", project="p", path="p", rows=0), 8)
