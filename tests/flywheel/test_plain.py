"""Words of others, as a terminal and a page may show them."""

from flywheel.plain import article, in_markdown, many, plain


def test_what_moves_a_terminal_or_hides_is_spelled_out() -> None:
    assert plain("a\tb\nc é 漢 👍") == "a\tb\nc é 漢 👍"
    assert plain("\x1b]0;x\x07\r") == "⟨U+001B⟩]0;x⟨U+0007⟩⟨U+000D⟩"
    assert plain("\u202etxt\u200b\x9b\ud800") == "⟨U+202E⟩txt⟨U+200B⟩⟨U+009B⟩⟨U+D800⟩"


def test_a_page_shows_a_name_on_one_line_and_follows_none_of_it() -> None:
    assert in_markdown("a\n| b ![x](http://h) <img src=h>") == (
        r"a \| b \!\[x\](http://h) &lt;img src=h&gt;"
    )
    assert in_markdown("\x1b" * 9000).count("⟨U+001B⟩") == 600


def test_counts_and_articles_are_those_of_the_word() -> None:
    assert (many(1, "trace"), many(1200, "trace")) == ("1 trace", "1,200 traces")
    assert (many(1, "copy", "copies"), many(0, "copy", "copies")) == ("1 copy", "0 copies")
    assert (article("assistant"), article("user")) == ("an assistant", "a user")
