"""`make deploy-check`: a real `sam build`, `sam deploy` and `sam delete` of the template, against an emulator of AWS.

What the emulator lacks is worked around in a copy of the built template, and printed; never left out in silence.
"""

import copy
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import boto3  # type: ignore[import-untyped]
import yaml

from tests.deploy.emulator import ROOT, environment, ministack
from tests.integration.authorization_server import AuthorizationServer, running

__all__ = ["main", "prepared"]

Template = dict[str, Any]

FOLDER: Final = ROOT / "build" / "deploy-check"
BUILT: Final = FOLDER / "built" / "template.yaml"
PREPARED: Final = BUILT.with_name("prepared.yaml")
"""Beside the other, whose paths are relative."""
SAM: Final = os.environ.get("SEALANE_SAM", str(ROOT / ".venv-sam" / "bin" / "sam"))
THIS_MACHINE: Final = {
    "Runtime": f"python{sys.version_info.major}.{sys.version_info.minor}",
    "Architecture": {"aarch64": "arm64"}.get(platform.machine(), platform.machine()),
}
"""The emulator runs functions on this machine, in its own Python."""

METHODS: Final = ("delete", "get", "head", "options", "patch", "post", "put")
ANY_METHOD: Final = "x-amazon-apigateway-any-method"
GATEWAY_RESPONSES: Final = "x-amazon-apigateway-gateway-responses"
ENCRYPTION_CONTEXT: Final = "kms:EncryptionContext:"

LACKING: Final = (
    "the gateway has no limits of time, size or rate, and tells functions no name of its own: `host` is left out below",
    "functions do not stream (it starts no AWS_LAMBDA_EXEC_WRAPPER): ResponseStreaming=true is deployed, not called",
    "an API whose body changes is replaced, and gets another URL",
)
NOT_DEPLOYED: Final = (
    "LegacyRouting=domain, CertificateArn, WebAclArn: the emulator has no routing rules, certificates and web ACLs",
    "AlarmTopic: it has no alarms on metric math",
    "AuthMode cognito and iam, which have no tokens of our own making",
)


class CheckFailed(Exception):
    """What was expected did not happen; the text says what."""


def main() -> int:
    """Build; deploy, update and delete two stacks; test what is deployed each time.

    Returns:
        The exit code.
    """
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        say("Building")
        sam("build", "--build-dir", str(BUILT.parent), "--parameter-overrides", *assigned(THIS_MACHINE))
        template, notes = prepared(yaml.safe_load(BUILT.read_text(encoding="utf-8")))
        PREPARED.write_text(yaml.safe_dump(template, sort_keys=False), encoding="utf-8")
        for note in (*notes, *LACKING):
            say(f"Not as on AWS: {note}")
        for note in NOT_DEPLOYED:
            say(f"Not deployed: {note}")
        with ministack(FOLDER) as url, running() as issuer:
            check(url, issuer)
    except (CheckFailed, RuntimeError, subprocess.TimeoutExpired) as error:
        say(f"FAILED: {error}", f"The emulator's log is {FOLDER / 'ministack.log'}", sep="\n")
        return 1
    say(f"The template can be deployed, updated and deleted ({time.monotonic() - started:.0f} s)")
    return 0


def prepared(template: Template) -> tuple[Template, list[str]]:
    """A copy of a built template that the emulator understands, and what is another in it."""
    made = copy.deepcopy(template)
    notes = []
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Api":
            body = made["Resources"][name]["Properties"]["DefinitionBody"]
            for item in body["paths"].values():
                operation = item.pop(ANY_METHOD)
                item.update({method: operation for method in METHODS if method not in item})
            responses = body.pop(GATEWAY_RESPONSES)
            made["Resources"] |= {
                name + kind.title().replace("_", ""): gateway_response(name, resource, kind, response)
                for kind, response in responses.items()
            }
            notes += [
                f"{name}: it reads no {ANY_METHOD}: every method is written out",
                f"{name}: it reads no {GATEWAY_RESPONSES}: they are resources of their own",
            ]
        if resource["Type"] == "AWS::KMS::Key":
            for statement in made["Resources"][name]["Properties"]["KeyPolicy"]["Statement"]:
                if ENCRYPTION_CONTEXT in str(statement.get("Condition")):
                    del statement["Condition"]
                    notes.append(f"{name}: its KMS knows no {ENCRYPTION_CONTEXT}…: {statement['Sid']} has no condition")
    return made, notes


def gateway_response(api: str, resource: Template, kind: str, response: Template) -> Template:
    """An entry of an API's gateway responses as a resource."""
    properties = {
        "RestApiId": {"Ref": api},
        "ResponseType": kind,
        "ResponseParameters": response["responseParameters"],
        "ResponseTemplates": response["responseTemplates"],
        **({"StatusCode": response["statusCode"]} if "statusCode" in response else {}),
    }
    condition = {"Condition": resource["Condition"]} if "Condition" in resource else {}
    return {"Type": "AWS::ApiGateway::GatewayResponse", **condition, "Properties": properties}


def check(url: str, issuer: AuthorizationServer) -> None:
    """Have two stacks: one as the template has it, and one that changes.

    Raises:
        CheckFailed: what was expected of them did not happen.
    """
    stack = Stack(url, "sealane")
    empty = stack.resources()
    stack.deploy()
    stack.smoke()
    stack.delete()
    kept = stack.resources() - empty
    if {kind for kind, _ in kept} != {"table", "key"}:
        raise CheckFailed(f"the table and its key should outlive their stack; what is left is {sorted(kept)}")

    stack = Stack(url, "sealane-changing")
    unchanged = {
        "DataDeletionPolicy": "Delete",
        "AccessLogs": "true",
        "LogDataProtection": "true",
        "ReservedConcurrency": "20",
        "SubnetIds": "subnet-0123456789abcdef0",
        "SecurityGroupIds": "sg-0123456789abcdef0",
    }
    lane = {"LegacyLane": "on", "LegacyTable": "keep"}
    stack.deploy(**unchanged, **lane)
    stack.smoke()
    tokens = {"AuthMode": "jwt", "AuthIssuer": issuer.url, "AuthScopes": "notes:read"}
    # Once for the URL, which the emulator changes with the body of an API, and once with it.
    stack.deploy(**unchanged, **lane, **tokens, AuthAudience=stack.endpoint)
    known = {"AuthAudience": stack.endpoint, "PublicUrl": stack.endpoint.removesuffix("/mcp")}
    stack.deploy(**unchanged, **lane, **tokens, **known)
    stack.smoke(token=issuer.token(aud=stack.endpoint))
    # The lane ends in two steps.
    stack.deploy(**unchanged, AuthMode="none", LegacyLane="off")
    stack.smoke()
    stack.deploy(**unchanged, LegacyTable="delete", ResponseStreaming="true")
    stack.delete()
    if left := stack.resources() - empty - kept:
        raise CheckFailed(f"nothing should outlive this stack; what is left is {sorted(left)}")


class Stack:
    """A stack of the template.

    Args:
        url: the emulator.
        name: the stack's name.

    Attributes:
        endpoint: URL of its MCP endpoint, once it is deployed.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self.endpoint = ""

    def deploy(self, **parameters: str) -> None:
        """Create or update it with these parameters; all others stay as they are."""
        say(f"Deploying {self._name}", *assigned(parameters))
        self._sam(
            "deploy",
            *("--config-file", str(ROOT / "samconfig.toml"), "--template-file", str(PREPARED)),
            *("--no-confirm-changeset", "--no-progressbar"),
            *("--parameter-overrides", *assigned({**THIS_MACHINE, **parameters})),
        )
        [found] = self._client("cloudformation").describe_stacks(StackName=self._name)["Stacks"]
        [invoke_url] = [each["OutputValue"] for each in found["Outputs"] if each["OutputKey"] == "InvokeUrl"]
        api, stage = invoke_url.removeprefix("https://").split(".")[0], invoke_url.rpartition("/")[2]
        # Gateway responses that are resources become live with a deployment after them.
        self._client("apigateway").create_deployment(restApiId=api, stageName=stage)
        self.endpoint = f"{self._url}/_aws/execute-api/{api}/{stage}/mcp"

    def smoke(self, token: str | None = None) -> None:
        """Test it with `sealane smoke`."""
        command = [str(Path(sys.executable).with_name("sealane")), "smoke", self.endpoint, "--without", "host"]
        variables = environment(self._url) | ({"SEALANE_TOKEN": token} if token else {})
        if subprocess.run(command, env=variables, timeout=600, check=False).returncode:  # noqa: S603
            for line in self._logs():
                say(f"  {line}")
            raise CheckFailed(f"{self._name} does not do what clients need")

    def delete(self) -> None:
        """Delete it."""
        say(f"Deleting {self._name}")
        self._sam("delete", "--no-prompts", "--region", "us-east-1")

    def resources(self) -> set[tuple[str, str]]:
        """What there is in the whole account, by kind and name, of the kinds that keep data or cost money."""
        keys = self._client("kms")
        states = {
            key: keys.describe_key(KeyId=key)["KeyMetadata"]["KeyState"]
            for key in (each["KeyId"] for each in keys.list_keys()["Keys"])
        }
        functions = self._client("lambda").list_functions()["Functions"]
        groups = self._client("logs").describe_log_groups()["logGroups"]
        return {
            *(("table", name) for name in self._client("dynamodb").list_tables()["TableNames"]),
            *(("key", key) for key, state in states.items() if state == "Enabled"),
            *(("function", each["FunctionName"]) for each in functions),
            *(("log group", each["logGroupName"]) for each in groups),
            *(("API", each["id"]) for each in self._client("apigateway").get_rest_apis()["items"]),
            *(("role", each["RoleName"]) for each in self._client("iam").list_roles()["Roles"]),
        }

    def _logs(self) -> list[str]:
        """The end of what its functions wrote."""
        logs = self._client("logs")
        groups = logs.describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{self._name}-")["logGroups"]
        return [
            " ".join(event["message"].split())
            for group in groups
            for event in logs.filter_log_events(logGroupName=group["logGroupName"])["events"][-20:]
        ]

    def _sam(self, command: str, *options: str) -> None:
        sam(command, "--stack-name", self._name, *options, url=self._url)

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self._url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106
        )


def sam(*command: str, url: str | None = None) -> None:
    """Run SAM CLI against the emulator at a URL.

    Raises:
        CheckFailed: it failed; the text has its words.
    """
    ended = subprocess.run(  # noqa: S603
        [SAM, *command],
        cwd=ROOT,
        env=environment(url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    if ended.returncode:
        raise CheckFailed(f"sam {command[0]} ended with {ended.returncode}:\n{ended.stdout}")


def assigned(parameters: Mapping[str, str]) -> list[str]:
    """Parameters as SAM CLI takes them."""
    return [f"{name}={value}" for name, value in parameters.items()]


def say(*words: str, sep: str = " ") -> None:
    """Print now, between the lines of other programs."""
    print(*words, sep=sep, flush=True)


if __name__ == "__main__":
    sys.exit(main())
