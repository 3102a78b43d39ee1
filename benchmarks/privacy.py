"""What is found of planted personal data and secrets, what is found where nothing is, and how fast.

Ours runs here. Peers run under a Python that has them (presidio-analyzer, detect-secrets):

    python benchmarks/privacy.py [--each 200] [--beside PYTHON] [--json]

Recall: planted values of which nothing is left, once what was found is replaced. False alarms:
texts of the clean set in which something is found. Speed: CPU milliseconds for 1,000 texts of
1.7 KB.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.privacy_planted import FORMS, Planted, clean, planted

WORDS = "the order was shipped on monday and should arrive within two working days please check it"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--each", type=int, default=200, help="Texts of a kind.")
    asked.add_argument("--beside", help="A Python that has the peers.")
    asked.add_argument("--json", action="store_true", help="Print one object.")
    given = asked.parse_args()
    texts = [*planted(given.each), *clean(given.each)]
    found = {"flywheel": scored(texts, ours)}
    if given.beside:
        for peer in ("presidio", "detect-secrets"):
            found[peer] = scored(texts, lambda some, peer=peer: theirs(given.beside, peer, some))
    print(json.dumps(found) if given.json else table(found))


def scored(texts: list[Planted], find: Any) -> dict[str, Any]:
    """`find`: texts -> for each the spans found, and CPU seconds."""
    spans, _ = find([one.text for one in texts])
    kept, of, alarms, beside = Counter[str](), Counter[str](), 0, 0
    for one, places in zip(texts, spans, strict=True):
        if not one.kind:
            alarms += bool(places)
            continue
        start = one.text.index(one.value)
        end = start + len(one.value)
        of[one.kind] += 1
        left = set(range(start, end)) - {at for a, b in places for at in range(a, b)}
        # What is between two spans (a blank, a sign) tells nothing.
        kept[one.kind] += not any(one.text[at].isalnum() for at in left)
        beside += sum(b <= start or a >= end for a, b in places)
    total = sum(1 for one in texts if not one.kind)
    _, seconds = find(ordinary(1000))
    return {
        "recall": {kind: kept[kind] / of[kind] for kind in of},
        "false_alarms": alarms / total,
        "precision": sum(kept.values()) / max(1, sum(kept.values()) + beside + alarms),
        "ms_1000_texts": round(seconds * 1000),
    }


def ordinary(count: int) -> list[str]:
    dice = random.Random(7)
    words = WORDS.split()
    return [
        f"order {dice.randrange(10**6)}: " + " ".join(dice.choice(words) for _ in range(310))
        for _ in range(count)
    ]


def ours(texts: list[str]) -> tuple[list[list[tuple[int, int]]], float]:
    from storage.privacy.find import find

    find("warm +49 30 901820, DE89370400440532013000")
    begun = time.process_time()
    spans = [[(place.start, place.end) for place in find(text)] for text in texts]
    return spans, time.process_time() - begun


def theirs(python: str, peer: str, texts: list[str]) -> tuple[list[list[tuple[int, int]]], float]:
    program = Path(__file__).with_name("privacy_peers.py")
    done = subprocess.run(
        [python, str(program), peer], input=json.dumps(texts), text=True, capture_output=True,
        check=True, timeout=1800,
    )  # fmt: skip
    said = json.loads(done.stdout)
    return said["spans"], said["seconds"]


def table(found: dict[str, Any]) -> str:
    names = list(found)
    lines = [f"{'':<18}" + "".join(f"{name:>16}" for name in names)]
    for kind in FORMS:
        if kind != "token":
            rates = (found[name]["recall"][kind] for name in names)
            lines.append(f"{kind:<18}" + "".join(f"{rate:>16.1%}" for rate in rates))
    for what in ("precision", "false_alarms"):
        lines.append(f"{what:<18}" + "".join(f"{found[name][what]:>16.1%}" for name in names))
    lines.append(
        f"{'ms, 1,000 texts':<18}" + "".join(f"{found[one]['ms_1000_texts']:>16,}" for one in names)
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
