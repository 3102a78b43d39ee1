"""What values of the ledger are called for people, on the command line and the dashboard alike."""

GATE: dict[bool | None, str] = {True: "passed", False: "refused", None: "not judged"}
"""`Dataset.gate_passed`."""
RETRAIN: dict[bool | None, str] = {
    True: "a retrain would be from other rows",
    False: "a retrain would be from the same rows",
    None: "whether a retrain would differ is not known",
}
"""`Mark.retrain`."""
