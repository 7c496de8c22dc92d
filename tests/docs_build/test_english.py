"""docs/build/english.py finds what docs/english.md lists, and nothing in code."""

from pathlib import Path

from english import _ROW, GUIDE, found_in, phrases, texts


def found(tmp_path: Path, name: str, text: str) -> list[tuple[int, str]]:
    path = tmp_path / name
    path.write_text(text)
    banned = phrases(GUIDE.read_text())
    return [
        (first + line, message)
        for first, part in texts(path)
        for line, message in found_in(part, banned)
    ]


def test_the_guide_has_fifteen_rules_and_thirty_rows():
    guide = GUIDE.read_text()
    assert "\n15. " in guide
    assert "\n16. " not in guide
    assert len(phrases(guide)) >= 30


def test_every_row_of_the_guide_finds_each_of_its_forms():
    for banned, instead in _ROW.findall(GUIDE.read_text())[1:]:
        (pattern,) = [p for p, text in phrases(GUIDE.read_text()) if text == instead]
        for form in banned.split(", "):
            assert pattern.search(f"It is, {form.capitalize()}, here."), form


def test_docstrings_messages_and_comments_are_read(tmp_path):
    code = '"""Tells\nwhoever asks."""\nx = f"so {y} loud"  # it stands\n'
    lines = [line for line, _ in found(tmp_path, "a.py", code)]
    assert sorted(lines) == [1, 2, 3, 3]


def test_code_and_names_are_left_alone(tmp_path):
    code = 'told = {"told": 1}\nx = f"a {told} b"  # `told` and ``whoever`` are names\n'
    assert found(tmp_path, "a.py", code) == []
    assert found(tmp_path, "a.md", "```\ntold\n```\nA `witness`.\n") == []


def test_names_of_arguments_in_docstrings_are_left_alone(tmp_path):
    code = '"""One.\n\n    Args:\n        told: what is told.\n    """\n'
    assert [line for line, _ in found(tmp_path, "a.py", code)] == [4]


def test_a_phrase_over_two_lines_is_found(tmp_path):
    assert found(tmp_path, "a.md", "One.\nit goes\non\n")[0][0] == 2
