"""Confident learning: which rows a classifier that never saw them is sure are labelled wrongly.

Source: Northcutt, Jiang, Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels",
JAIR 70 (2021). A logistic model of what was asked and answered (`storage.sketch`) gives each row a
probability from folds that hold neither it nor another row of its prompt. With t_j the mean
probability of j among rows labelled j (equation 2), a row labelled i is off the diagonal of the
confident joint where p_j >= t_j for the other j; of these the surest are named. Where the model
tells good from bad hardly better than chance, none are.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

FOLDS = 4
WIDTH = 1 << 18
"""Columns that words are hashed into."""
STEPS = 200_000
"""Updates of a fold's model, at least; fewer rows are gone through more often."""
TELLS = 0.8
"""Area under the ROC curve from which the model knows something."""


@dataclass(frozen=True)
class Confident:
    sure: float
    most: float
    least: int


def doubted(frame: "pl.DataFrame", asked: Confident) -> "pl.Series":
    """Probability of the row's own verdict (column `good`) where it is doubted, else null."""
    import numpy as np
    import polars as pl

    nothing = pl.Series([None] * len(frame), dtype=pl.Float64)
    known = frame.with_row_index("place").filter(pl.col("good").is_not_null())
    good = known["good"].to_numpy().astype(bool)
    if len(good) < asked.least or min(good.sum(), (~good).sum()) < FOLDS * 2:
        return nothing
    fold = np.array([int(prompt[:8], 16) % FOLDS for prompt in known["prompt"]])
    probability = _held_out(_matrix(known["sketch"]), good, fold)
    if probability is None:
        return nothing
    high, low = probability[good].mean(), (1 - probability[~good]).mean()
    own = np.where(good, probability, 1 - probability)
    off = np.where(good, 1 - probability >= low, probability >= high)
    suspects = np.flatnonzero(off & (own <= 1 - asked.sure))
    # Among equals the row's place, which is its hash's.
    surest = suspects[np.argsort(own[suspects], kind="stable")][: int(asked.most * len(good))]
    places = known["place"].gather(surest)
    return nothing.scatter(places, own[surest]) if len(surest) else nothing


def _matrix(sketches: "pl.Series") -> Any:
    """[rows, WIDTH], 1 where a row has the word."""
    import numpy as np
    from scipy.sparse import csr_matrix

    ends = np.concatenate([[0], np.cumsum(sketches.list.len().to_numpy())])
    words = sketches.explode(empty_as_null=False).to_numpy().astype(np.int64) % WIDTH
    filled = np.ones(len(words), dtype=np.float32)
    return csr_matrix((filled, words, ends), shape=(len(sketches), WIDTH))


def _held_out(words: Any, good: Any, fold: Any) -> Any:
    """[rows] P(good), each from a model of the other folds; None = that model knows nothing."""
    import numpy as np
    from sklearn.linear_model import SGDClassifier
    from sklearn.metrics import roc_auc_score

    probability = np.full(len(good), good.mean())
    for one in range(FOLDS):
        seen, unseen = fold != one, fold == one
        if not unseen.any() or len(np.unique(good[seen])) < 2:
            continue
        epochs = int(np.clip(STEPS // seen.sum(), 3, 50))
        # Held back the more the fewer rows there are: one that fits them all is sure of anything.
        held = max(1 / seen.sum(), 1e-5)
        model = SGDClassifier(
            loss="log_loss", alpha=held, max_iter=epochs, tol=None, average=True, random_state=0
        )
        model.fit(words[seen], good[seen])
        probability[unseen] = model.predict_proba(words[unseen])[:, 1]  # of False and True
    return probability if roc_auc_score(good, probability) >= TELLS else None
