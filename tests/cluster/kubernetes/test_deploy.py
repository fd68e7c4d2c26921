"""The files of ``deploy/`` against the API's types, the operator's schema, and what Spark asks of the API."""

import json
import re
import shlex

import pytest
import yaml

from tensorflowonspark.cli import main
from tests.support.paths import ROOT, SUPPORT

DEPLOY = ROOT / "deploy"
SCHEMA = SUPPORT / "kubernetes/spark_application.schema.json"
APACHES_SCHEMA = SUPPORT / "kubernetes/apache_spark_application.schema.json"


@pytest.fixture
def jsonschema():
    """The library, which takes a second to import."""
    import jsonschema

    return jsonschema


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


@pytest.mark.parametrize("name", ["executor", "network-policy", "notebook", "rbac"])
def test_the_api_knows_each_field(kubernetes, name):
    assert kubernetes.check(DEPLOY / f"kubernetes/{name}.yaml") == "ok"


@pytest.mark.parametrize(
    ("written", "instead", "problem"),
    [
        ("mountPath:", "mountpath:", 'Unrecognized field "mountpath"'),
        ("volumes:", "volumes: none", "Cannot deserialize"),
        ("kind: Pod", "kind: Pot", "no such type: v1 Pot"),
    ],
)
def test_the_check_finds_mistakes(kubernetes, tmp_path, written, instead, problem):
    text = (DEPLOY / "kubernetes/executor.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.partition("  volumes:")[0].replace(written, instead))
    if "volumes" in written:
        (tmp_path / "wrong.yaml").write_text(text.partition("  volumes:")[0] + f"  {instead}\n")
    assert problem in kubernetes.check(tmp_path / "wrong.yaml")


@pytest.mark.smoke
def test_the_application_is_one_for_the_operator(jsonschema):
    (application,) = documents("spark-application.yaml")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    validator.validate(application)
    application["spec"]["executor"]["core"] = 4
    with pytest.raises(jsonschema.ValidationError, match="'core' was unexpected"):
        validator.validate(application)


@pytest.mark.smoke
def test_so_is_that_for_apaches_own_which_says_the_same(jsonschema):
    (application,), (other,) = documents("spark-application-apache.yaml"), documents("spark-application.yaml")
    validator = jsonschema.Draft202012Validator(json.loads(APACHES_SCHEMA.read_text()))
    validator.validate(application)
    spec, settings, same = application["spec"], application["spec"]["sparkConf"], other["spec"]
    assert (spec["pyFiles"], spec["driverArgs"]) == (same["mainApplicationFile"], same["arguments"])
    assert spec["runtimeVersions"]["sparkVersion"] == same["sparkVersion"]
    assert settings["spark.kubernetes.container.image"] == same["image"]
    assert settings["spark.kubernetes.authenticate.driver.serviceAccountName"] == same["driver"]["serviceAccount"]
    for name in ("instances", "cores", "memory", "memoryOverhead"):
        assert settings[f"spark.executor.{name}"] == str(same["executor"][name])
    (executor,) = documents("executor.yaml")
    assert all(spec[role]["podTemplateSpec"]["spec"] == executor["spec"] for role in ("driverSpec", "executorSpec"))
    spec["runtimeVersions"]["spark"] = "4"
    with pytest.raises(jsonschema.ValidationError, match="'spark' was unexpected"):
        validator.validate(application)


@pytest.mark.smoke
def test_application_notebook_account_and_policy_belong_together():
    (application,) = documents("spark-application.yaml")
    account, role, binding = documents("rbac.yaml")
    assert application["spec"]["driver"]["serviceAccount"] == account["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (policy,) = documents("network-policy.yaml")
    name = application["metadata"]["name"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"spark-app-name": name}
    notebook, service = documents("notebook.yaml")
    assert notebook["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert notebook["metadata"]["labels"]["spark-app-name"] == name
    assert service["spec"]["selector"].items() <= notebook["metadata"]["labels"].items()
    (executor,) = documents("executor.yaml")
    volumes = [executor["spec"]["volumes"], executor["spec"]["containers"][0]["volumeMounts"]]
    assert volumes == [application["spec"]["volumes"], application["spec"]["executor"]["volumeMounts"]]


@pytest.mark.smoke
def test_no_pod_has_root_privilege_or_a_root_file_system_to_write_to():
    """Where the image writes, there are volumes."""
    (executor,), (notebook, _) = documents("executor.yaml"), documents("notebook.yaml")
    (application,) = documents("spark-application.yaml")
    pods = [(each["spec"]["securityContext"], each["spec"]["containers"][0]) for each in (executor, notebook)]
    roles = [application["spec"][name] for name in ("driver", "executor")]
    pods += [(role["podSecurityContext"], role) for role in roles]
    for pod, container in pods:
        assert pod == {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/tmp", "/opt/spark/work-dir"}
    assert ("ENV", "HOME=/opt/spark/work-dir") in instructions()


# ---- the image


def instructions():
    """Return the instructions of the Dockerfile: their names and their arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def resolved(text, arguments):
    for name, value in arguments.items():
        text = text.replace(f"${{{name}}}", value)
    return text


@pytest.mark.smoke
def test_the_stages_of_the_image():
    """No stage is named by an argument, which Debian's buildah can't resolve; no builder reads the file here."""
    stages, arguments = [], {}
    for name, rest in instructions():
        assert name in {"ARG", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}
        if name == "ARG" and not stages:
            argument, value = resolved(rest, arguments).split("=")
            arguments[argument] = value
        elif name == "FROM":
            image, _, stage = resolved(rest, arguments).partition(" AS ")
            assert image == "apache/spark:4.1.2-python3"
            stages.append(stage)
        elif name == "COPY":
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            assert "--from=wheel" in rest or all((ROOT / source).exists() for source in sources)
    assert arguments["BASE"] == "apache/spark:4.1.2-python3"  # which a digest can replace
    (gpus,) = [rest for name, rest in instructions() if "NVIDIA_VISIBLE_DEVICES" in rest]
    assert "NVIDIA_VISIBLE_DEVICES=void " in gpus  # what a pod asks for is set by the device plugin
    assert stages == ["wheel", ""]
    assert ("ARG", "ACCELERATOR=cpu") in instructions()
    assert instructions()[-1] == ("USER", "spark")


@pytest.mark.smoke
def test_image_and_application_have_one_version_of_spark():
    (application,) = documents("spark-application.yaml")
    assert ("ARG", f"SPARK={application['spec']['sparkVersion']}") in instructions()


# ---- the page


@pytest.mark.smoke
def test_the_commands_of_the_page_are_accepted(hadoop_free, monkeypatch, capsys):
    """Those of ``tfos run``, with ``--dry-run``; each names the namespace, and gives pods the image's Python."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    page = (ROOT / "docs/deploy/kubernetes.md").read_text().replace("\\\n", " ").replace("/opt/examples", "examples")
    commands = [
        shlex.split(command) for command in re.findall(r"^(?:\$ .*)?\btfos (run --master .*)$", page, re.MULTILINE)
    ]
    assert len(commands) == 3
    for command in commands:
        assert main([command[0], "--dry-run", *command[1:]]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "nodes     2 workers" in lines
        assert "Python    python3" in lines
        assert any("spark.kubernetes.namespace=training" in line for line in lines)
