"""deploy/compose/compose.yaml by the public schema, and by what the schema cannot say.

Prints one line for each finding that is in order; the last ones are the arguments of every service of Weir's image, for
the caller to try on the program.
"""

import json
import os
import re
import subprocess
import sys

from ruamel.yaml import YAML

FILE = os.environ["COMPOSE_FILE"]
FOLDER = os.path.dirname(FILE)


def the_schema_of_the_specification():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def names(entries):
    return [entry if isinstance(entry, str) else entry["source"] for entry in entries]


def every_name_is_defined(file):
    for service, spec in file["services"].items():
        for kind in ("configs", "secrets", "networks"):
            for name in names(spec.get(kind, [])):
                assert name in file[kind], f"{service}: {kind} has no {name}"
        for volume in spec.get("volumes", []):
            assert volume.split(":")[0] in file["volumes"], f"{service}: no volume {volume}"
        for other, how in spec.get("depends_on", {}).items():
            condition = how["condition"]
            target = file["services"][other]
            if condition == "service_healthy":
                assert "healthcheck" in target, f"{service} waits for the health of {other}, which tells nothing"
            else:
                assert is_once(target), f"{service} waits for the end of {other}, which does not end"
    for kind in ("configs", "secrets"):
        for name, source in file[kind].items():
            path = os.path.join(FOLDER, source["file"])
            # Secrets are made where they are needed.
            assert kind == "secrets" or os.path.isfile(path), path


def is_once(spec):
    return spec["restart"] == "on-failure"


def every_image_is_pinned(file):
    for service, spec in file["services"].items():
        image = spec["image"]
        if image == "weir:local":
            continue
        assert re.fullmatch(r"[a-z./-]+:\d+\.\d+\.\d+(-\w+)?", image), f"{service}: {image}"


def whoever_runs_on_tells_its_health(file):
    for service, spec in file["services"].items():
        assert is_once(spec) != ("healthcheck" in spec), service


def each_data_folder_has_one_owner(file):
    owners = {}
    for service, spec in file["services"].items():
        for volume in spec.get("volumes", []):
            owners.setdefault(volume.split(":")[0], []).append(service)
    assert all(len(of) == 1 for of in owners.values()), owners
    assert set(owners) == set(file["volumes"]), owners


with open(FILE, encoding="utf-8") as text:
    compose = YAML(typ="safe").load(text)

the_schema_of_the_specification()
print("ok the_schema_of_the_specification")
for check in (
    every_name_is_defined,
    every_image_is_pinned,
    whoever_runs_on_tells_its_health,
    each_data_folder_has_one_owner,
):
    check(compose)
    print(f"ok {check.__name__}")
for service, spec in compose["services"].items():
    if spec["image"] == "weir:local":
        print(f"ok service {service} {json.dumps(list(spec['command']))}")
