"""Words are hashed many at once: each word's hash is its own, wherever it stands."""

from flywheel.words import spaced, words_of
from storage.word_hashes import word_hashes

TEXTS = ["Zwei  Wörter", "", "a b a", "x" * 100_000 + " b", "日本 b", "ab ba", " end. "]


def test_a_words_hash_is_its_own_in_any_text() -> None:
    hashes, counts = word_hashes([spaced(text) for text in TEXTS])
    words = [word for text in TEXTS for word in words_of(text)]
    assert counts.tolist() == [len(words_of(text)) for text in TEXTS]
    known = dict(zip(words, hashes.tolist(), strict=True))
    assert [known[word] for word in words] == hashes.tolist()
    assert len(set(known.values())) == len(known)
    assert word_hashes([])[0].tolist() == []
