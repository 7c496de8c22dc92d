"""The action, the hook and examples/ci fit their schemas, and their commands do what they say."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml
from made_report import made_report
from places import DOCS, EXAMPLES, REPOSITORY
from stages import staged

import lightning_audit
from lightning_audit.results.audit_report import EXIT_CODES

ACTION = REPOSITORY / "action.yml"
WORKFLOW = EXAMPLES / "ci" / "github.yml"
HOOKS = REPOSITORY / ".pre-commit-hooks.yaml"
JOB = EXAMPLES / "ci" / "gitlab-ci.yml"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMIT = "git -c user.name=a -c user.email=a@b commit -qm a"
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def yaml_of(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def run(script: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with bash as GitHub does, in an environment that has the command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def run_action(directory: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    action = yaml_of(ACTION)
    step, _upload = action["runs"]["steps"]
    given = {name: one["default"] for name, one in action["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    files = {"GITHUB_OUTPUT": directory / "output", "GITHUB_STEP_SUMMARY": directory / "summary"}
    variables = {
        name: given[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in step["env"].items()
    }
    return run(step["run"], directory, **variables, **{k: str(v) for k, v in files.items()})


def fits(path: Path, *options: str, code: int = 0) -> None:
    command = [sys.executable, "-m", "check_jsonschema", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (ACTION, ["--builtin-schema", "vendor.github-actions"]),
        (WORKFLOW, ["--builtin-schema", "vendor.github-workflows"]),
        (JOB, ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]),
        *((path, ["--builtin-schema", "vendor.github-workflows"]) for path in WORKFLOWS),
    ],
    ids=["action", "workflow", "GitLab", *(path.stem for path in WORKFLOWS)],
)
def test_a_file_fits_the_schema_of_its_service(path, options, tmp_path):
    fits(path, *options)
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("runs: {using: composite, steps: 3}\nprivacy-audit: {script: {}}\n")
    fits(wrong, *options, code=1)


def usage(path: Path) -> Any:
    """What the comment of a file tells its reader to write."""
    comment = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    return yaml.safe_load("\n".join(line[4:] for line in comment if line.startswith("#   ")))


def test_the_workflow_uses_the_action_of_this_release_after_a_training_that_failed():
    *_, train, gate = yaml_of(WORKFLOW)["jobs"]["audit"]["steps"]
    assert train == {"run": "python train.py"}
    owner = PROJECT["urls"]["Repository"].removeprefix("https://github.com/")
    assert gate["uses"] == f"{owner}@v{lightning_audit.__version__}"
    assert gate["if"] == "always()"
    assert set(gate["with"]) <= set(yaml_of(ACTION)["inputs"])


def test_the_action_installs_what_the_gate_needs_without_torch_where_the_command_is_missing(
    tmp_path,
):
    step, upload = yaml_of(ACTION)["runs"]["steps"]
    bash = shutil.which("bash")
    (tmp_path / "python").write_text(f'#!{bash}\necho "$@" >> installed\n')
    (tmp_path / "python").chmod(0o755)
    script = step["run"].partition("mapfile")[0]
    done = subprocess.run(
        [bash, "-e", "-c", script],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "GITHUB_ACTION_PATH": "/the action"},
    )
    assert done.returncode == 0
    names, own = (tmp_path / "installed").read_text().splitlines()
    needed = {each.partition(">")[0] for each in PROJECT["dependencies"]} - {"torch", "opacus"}
    assert set(names.split()[4:]) == needed
    assert own == "-m pip install --quiet --no-deps /the action"
    assert upload["if"] == "always() && inputs.upload-sarif == 'true'"


def test_the_job_runs_after_a_training_that_failed_and_has_its_report(tmp_path):
    project, job = usage(JOB), yaml_of(JOB)["privacy-audit"]
    train = project["train"]
    assert job["when"] == train["artifacts"]["when"] == "always"
    assert job["needs"] == [{"job": "train", "artifacts": True}]
    assert train["artifacts"]["paths"] == [job["variables"]["REPORTS"]]
    path = tmp_path / "ci.yml"
    path.write_text(yaml.safe_dump(project))
    fits(path, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")


@pytest.mark.parametrize("outcome", staged(quick=["VIOLATION"], nightly=["PASS", "INCONCLUSIVE"]))
def test_the_action_ends_with_the_verdict_and_leaves_its_files(tmp_path, outcome):
    for name, each in (("a b", outcome), ("c", "PASS")):
        (tmp_path / name).mkdir()
        made_report(each).save(tmp_path / name / "report.json")
    done = run_action(tmp_path, reports="a b\n\nc\n")
    assert done.returncode == EXIT_CODES[outcome], done.stderr
    assert f"{outcome} is the worst verdict of 2 trainings" in done.stdout
    assert (tmp_path / "output").read_text() == f"outcome={outcome}\n"
    assert f"Privacy audit: {outcome}" in (tmp_path / "summary").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "privacy-audit.sarif").read_text())["version"] == "2.1.0"
    assert len(list(JUnitXml.fromfile(str(tmp_path / "privacy-audit.xml")))) == 2


def test_the_action_passes_its_limits_on_and_runs_no_input_as_a_command(tmp_path):
    path = made_report().save(tmp_path / "report.json")
    assert run_action(tmp_path, reports="report.json", max_epsilon="2").returncode == 1
    assert run_action(tmp_path, reports="report.json", baseline=str(path)).returncode == 0
    done = run_action(tmp_path, reports='$(touch made)\n"; touch made; "\n--max-epsilon=1')
    assert done.returncode == 2
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("outcome", staged(quick=["INCONCLUSIVE"], nightly=["PASS", "VIOLATION"]))
def test_the_job_ends_with_the_verdict_and_keeps_its_artifacts(tmp_path, outcome):
    (tmp_path / "audit").mkdir()
    made_report(outcome).save(tmp_path / "audit" / "report.json")
    job = yaml_of(JOB)["privacy-audit"]
    install, *commands = job["script"]
    assert install == 'pip install "$LIGHTNING_AUDIT"'
    assert job["image"] == "python:3.11-slim"
    done = run("\n".join(commands), tmp_path, **job["variables"])
    assert done.returncode == EXIT_CODES[outcome], done.stderr
    kept = {*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]}
    assert {path.name for path in tmp_path.iterdir()} == {"audit", *kept}


def test_the_notes_of_a_release_are_the_section_of_its_version(tmp_path):
    steps = yaml_of(REPOSITORY / ".github" / "workflows" / "release.yml")["jobs"]["dist"]["steps"]
    (script,) = [one["run"] for one in steps if "changelog" in one.get("name", "")]
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    text = (
        changes.replace("\n## ", "\n## Unreleased\n\n- new\n\n## ", 1)
        + "\n## 0.0.9 - then\n\n- old\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(text, encoding="utf-8")
    tag = f"v{lightning_audit.__version__}"
    assert run(script, tmp_path, GITHUB_REF_NAME=tag).returncode == 0
    section = changes.partition(f"## {tag[1:]} ")[2].partition("\n## ")[0].partition("\n")[2]
    assert (tmp_path / "notes.md").read_text(encoding="utf-8").strip() == section.strip()
    assert run(script, tmp_path, GITHUB_REF_NAME="v9.0").returncode == 1


def test_the_hook_of_pre_commit_fails_on_a_report_that_does_not_pass(tmp_path):
    """As the page says: from a repository at a tag, in another one with committed reports."""
    hook, project = tmp_path / "hook", tmp_path / "project"
    (block,) = re.findall(r"```yaml\n(repos:.*?)```", (DOCS / "gate.md").read_text(), re.DOTALL)
    config = yaml.safe_load(block)
    assert config["repos"][0]["repo"] == PROJECT["urls"]["Repository"]
    tag = config["repos"][0]["rev"]
    assert tag == f"v{lightning_audit.__version__}"
    config["repos"][0]["repo"] = str(hook)
    files = {hook: {HOOKS.name: HOOKS.read_text(encoding="utf-8")}}
    files[project] = {".pre-commit-config.yaml": yaml.safe_dump(config), "report.json": "{}"}
    for folder, texts in files.items():
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text)
        run(f"git init -q && git add . && {COMMIT} && git tag {tag}", folder)
    home = {"PRE_COMMIT_HOME": str(tmp_path / "home")}
    for outcome, shown in {"PASS": "Passed", "VIOLATION": "exit code: 1"}.items():
        folder = project / "models" / outcome
        folder.mkdir(parents=True)
        made_report(outcome).save(folder / "report.json")
        done = run("git add . && python -m pre_commit run", project, **home)
        assert shown in done.stdout, done.stdout + done.stderr
        assert done.returncode == (outcome != "PASS")
    assert "VIOLATION is the worst verdict of 2 trainings" in done.stdout
