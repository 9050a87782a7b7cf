"""What a page shows is held against what its commands print."""

from __future__ import annotations

from pathlib import Path

from tests.console import Shown, differences, matches, shell, shown, user_environment
from tests.copies import ROOT

PAGE = """# A page

```console
$ cat > a.txt <<'END'
it's a line
$5
END
$ echo 'one
two' \\
    three
one
two three
head$ hostname
head
```

    $ not run

```console
$ cat a.txt
it's a line
$5
```
"""


def test_commands_may_have_several_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert shown(page) == [
        Shown("cat > a.txt <<'END'\nit's a line\n$5\nEND", "", 4),
        Shown("echo 'one\ntwo' \\\n    three", "one\ntwo three\n", 8),
        Shown("hostname", "head\n", 13, "head"),
        Shown("cat a.txt", "it's a line\n$5\n", 20),
    ]


def test_commands_are_run_in_one_shell_and_a_difference_names_its_line(tmp_path: Path) -> None:
    page = ROOT / "build/page.md"
    text = "```console\n$ PORT=5001; cat > b <<'END'\nb\nEND\n$ cat b; echo $PORT\nb\n5001\n$ cat b\nc\n```\n"
    ran: list[str] = []
    page.parent.mkdir(exist_ok=True)
    page.write_text(text, encoding="utf-8")
    try:
        with shell(tmp_path, user_environment(tmp_path)) as bash:

            def run(one: Shown) -> str:
                ran.append(one.command)
                return bash.run(one.command)

            wrong = differences(page, tmp_path, run, {"5001": "6001"})
    finally:
        page.unlink()
    assert ran == ["PORT=6001; cat > b <<'END'\nb\nEND", "cat b; echo $PORT", "cat b"]
    assert wrong == ["build/page.md:8: $ cat b\nshown:\nc\nprinted:\nb\n\n"]


def test_numbers_are_the_run_s_own_and_words_are_not(tmp_path: Path) -> None:
    page, printed = "step 10 loss 0.5\n...\ndone in 3s, ... rows\n", "step 2  loss 7.25e-3\nx\ny\ndone in 1m03s, many rows\n"
    assert matches(page, printed, tmp_path)
    assert not matches(page, printed.replace("loss", "lost"), tmp_path)
    assert not matches(page, f"{printed}and more\n", tmp_path)
    assert not matches("", "Traceback\n", tmp_path)
    assert matches("", "\n", tmp_path)
    # The number of a version counts.
    assert matches('{"model":"gausscse/2","score":0.5}\n', '{"model":"gausscse/2","score":0.7}\n', tmp_path)
    assert not matches('{"model":"gausscse/2","score":0.5}\n', '{"model":"gausscse/1","score":0.5}\n', tmp_path)
