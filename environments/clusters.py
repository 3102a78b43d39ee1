"""Groups problems by what their users ask, so that traffic can be looked at and picked from.

Enter: the users' own words. Leave: each text's cluster, and each cluster's name: the words that set
it apart. Invariant: the same texts in any order give the same clusters; time and memory are linear
in the texts, since centres are found on a sample.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.ids import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE = 5000
"""Texts that vocabulary and centres are found on."""
MAX_CLUSTERS = 16
_CHARACTERS = 2000
"""Of a text that count: what is asked stands early."""
_WIDTH = 64
"""Dimensions that texts are compared in."""
_ROWS = 5000
"""Texts placed at once."""


class Clustered(NamedTuple):
    labels: list[int]
    """Parallel to the texts; 0 = the largest cluster."""
    names: list[str]


def clustered(texts: Sequence[str]) -> Clustered:
    """TF-IDF of words and pairs of words, its main directions, and k-means in them."""
    known = sorted({text[:_CHARACTERS] for text in texts}, key=lambda text: digest(text))
    count = min(MAX_CLUSTERS, round((len(known) / 8) ** 0.5))
    if count < 2:
        return Clustered([0] * len(texts), ["everything"] * bool(texts))
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums over several threads differ from run to run
        return _clustered(texts, known[:SAMPLE], count)


def _clustered(texts: Sequence[str], sample: list[str], count: int) -> Clustered:
    import numpy as np
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    many = len(sample) > 50
    words = TfidfVectorizer(
        max_features=20_000,
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2 if many else 1,
        max_df=0.5 if many else 1.0,
        token_pattern=r"(?u)\b[^\W\d]\w+\b",
    )
    try:
        rows: Any = words.fit_transform(sample)
    except ValueError:  # no words but those of all texts
        return Clustered([0] * len(texts), ["everything"])
    width = min(_WIDTH, min(rows.shape) - 1)
    if width < 2:
        return Clustered([0] * len(texts), ["everything"])
    plane = TruncatedSVD(width, random_state=0).fit(rows)
    means = KMeans(count, n_init=2, random_state=0).fit(normalize(plane.transform(rows)))
    labels: list[int] = []
    for start in range(0, len(texts), _ROWS):
        part = [text[:_CHARACTERS] for text in texts[start : start + _ROWS]]
        labels += means.predict(normalize(plane.transform(words.transform(part)))).tolist()
    names = _names(rows, means.labels_, words.get_feature_names_out(), count)
    sizes = np.bincount(labels, minlength=count)
    order = sorted(range(count), key=lambda one: (-sizes[one], names[one]))
    place = {one: at for at, one in enumerate(order) if sizes[one]}
    return Clustered([place[one] for one in labels], [names[one] for one in place])


def _names(rows: Any, labels: "NDArray[Any]", words: Sequence[str], count: int) -> list[str]:
    """The three words that a cluster has more of than all texts have."""
    import numpy as np

    everywhere = np.asarray(rows.mean(axis=0)).ravel()
    names = []
    for one in range(count):
        inside = rows[labels == one]
        if not inside.shape[0]:
            names.append("")
            continue
        more = np.asarray(inside.mean(axis=0)).ravel() - everywhere
        names.append(", ".join(_apart([words[at] for at in np.argsort(-more, kind="stable")[:12]])))
    return names


def _apart(words: Sequence[str], keep: int = 3) -> list[str]:
    """The first words that do not repeat each other."""
    found: list[str] = []
    for word in words:
        if not any(set(word.split()) & set(other.split()) for other in found):
            found.append(word)
    return found[:keep]
