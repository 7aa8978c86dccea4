"""What a call takes: one row per method. A method without a row is refused to everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

# Of a request that holds ids and words, even thousands of them.
WORDS_BYTES = 1 << 20
# Of one with an entry for each of an inventory's links, or for each node of the largest graph.
LISTS_BYTES = 1 << 24
# Of a checkpoint's list of tensors, some 200,000. Python makes and drops so many records with others waiting.
CHECKPOINT_BYTES = 1 << 25
# Of one of an upload's, which brings a part of a blob: clients send a mebibyte in each.
CHUNK_BYTES = 1 << 22


class Scope(Enum):
    """What a token may allow. Any token that is valid may read."""

    SUBMIT = "submit"
    DEPLOY = "deploy"
    # Change what others own.
    OPERATE = "operate"
    # Everything.
    ADMIN = "admin"


class Caller(Enum):
    """Whom no token makes, or any token does."""

    ANYONE = "anyone"
    READER = "reader"
    DAEMON = "daemon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`creates` and `owned` are kinds of objects; the request's field `subject` holds the id of what it is about.

    `daemons` may call it too. A message of more than `most_bytes` is refused before it is parsed.
    """

    needs: Scope | Caller
    creates: str = ""
    owned: str = ""
    subject: str = ""
    audited: bool = False
    daemons: bool = False
    most_bytes: int = WORDS_BYTES


def _reads() -> Rule:
    return Rule(needs=Caller.READER)


def _creates(needs: Scope, kind: str, most_bytes: int = WORDS_BYTES) -> Rule:
    return Rule(needs=needs, creates=kind, audited=True, most_bytes=most_bytes)


def _changes(needs: Scope, kind: str, field: str, most_bytes: int = WORDS_BYTES) -> Rule:
    return Rule(needs=needs, owned=kind, subject=field, audited=True, most_bytes=most_bytes)


PLANNER = "partition_planner.v1.PlannerService"
REGISTRY = "partition_planner.v1.DaemonRegistryService"
ACCESS = "partition_planner.v1.AccessService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

RULES: Mapping[str, Rule] = {
    f"/{PLANNER}/GetUpload": Rule(needs=Caller.READER, daemons=True),
    f"/{PLANNER}/UploadBlob": Rule(needs=Scope.SUBMIT, audited=True, daemons=True, most_bytes=CHUNK_BYTES),
    f"/{PLANNER}/ReadBlob": Rule(needs=Caller.READER, daemons=True),
    f"/{PLANNER}/CollectBlobs": Rule(needs=Scope.OPERATE, audited=True),
    f"/{PLANNER}/CreateGraph": _creates(Scope.SUBMIT, "graph", LISTS_BYTES),
    f"/{PLANNER}/AttachWeights": _changes(Scope.SUBMIT, "graph", "graph_id", LISTS_BYTES),
    f"/{PLANNER}/GetGraph": _reads(),
    f"/{PLANNER}/ListGraphs": _reads(),
    f"/{PLANNER}/DeleteGraph": _changes(Scope.SUBMIT, "graph", "graph_id"),
    f"/{PLANNER}/ListDevices": _reads(),
    f"/{PLANNER}/DrainDevice": Rule(needs=Scope.OPERATE, subject="device_id", audited=True),
    f"/{PLANNER}/CreateInventory": _creates(Scope.SUBMIT, "inventory", LISTS_BYTES),
    f"/{PLANNER}/GetInventory": _reads(),
    f"/{PLANNER}/ListInventories": _reads(),
    f"/{PLANNER}/DeleteInventory": _changes(Scope.SUBMIT, "inventory", "inventory_id"),
    f"/{PLANNER}/CreatePlan": _creates(Scope.SUBMIT, "plan", LISTS_BYTES),
    f"/{PLANNER}/GetPlanOperation": _reads(),
    f"/{PLANNER}/WaitPlanOperation": _reads(),
    f"/{PLANNER}/CancelPlanOperation": _changes(Scope.SUBMIT, "plan", "operation_id"),
    f"/{PLANNER}/GetPlan": _reads(),
    f"/{PLANNER}/ListPlans": _reads(),
    f"/{PLANNER}/DeletePlan": _changes(Scope.SUBMIT, "plan", "plan_id"),
    f"/{PLANNER}/ProfileGraph": _creates(Scope.DEPLOY, "profile"),
    f"/{PLANNER}/ImportTimes": _creates(Scope.SUBMIT, "profile", LISTS_BYTES),
    f"/{PLANNER}/GetProfile": _reads(),
    f"/{PLANNER}/ListProfiles": _reads(),
    f"/{PLANNER}/DeleteProfile": _changes(Scope.SUBMIT, "profile", "profile_id"),
    f"/{PLANNER}/CreateCheckpoint": _creates(Scope.DEPLOY, "checkpoint", CHECKPOINT_BYTES),
    f"/{PLANNER}/GetCheckpoint": _reads(),
    f"/{PLANNER}/ListCheckpoints": _reads(),
    f"/{PLANNER}/DeleteCheckpoint": _changes(Scope.DEPLOY, "checkpoint", "checkpoint_id"),
    f"/{PLANNER}/Deploy": _creates(Scope.DEPLOY, "deployment"),
    f"/{PLANNER}/GetDeployment": _reads(),
    f"/{PLANNER}/ListDeployments": _reads(),
    f"/{PLANNER}/WatchDeployment": _reads(),
    f"/{PLANNER}/StopDeployment": _changes(Scope.DEPLOY, "deployment", "deployment_id"),
    f"/{PLANNER}/DeleteDeployment": _changes(Scope.DEPLOY, "deployment", "deployment_id"),
    f"/{REGISTRY}/RegisterDaemon": Rule(needs=Caller.DAEMON, subject="address", audited=True),
    f"/{REGISTRY}/Heartbeat": Rule(needs=Caller.DAEMON),
    f"/{ACCESS}/CreateToken": Rule(needs=Scope.ADMIN, audited=True),
    f"/{ACCESS}/ListTokens": Rule(needs=Scope.ADMIN),
    f"/{ACCESS}/RevokeToken": Rule(needs=Scope.ADMIN, subject="token_id", audited=True),
    f"/{ACCESS}/CreateTicket": _changes(Scope.DEPLOY, "deployment", "deployment_id"),
    f"/{ACCESS}/ListAudit": Rule(needs=Scope.ADMIN),
    f"/{HEALTH}/Check": Rule(needs=Caller.ANYONE),
    f"/{HEALTH}/Watch": Rule(needs=Caller.ANYONE),
    f"/{HEALTH}/List": Rule(needs=Caller.ANYONE),
    f"/{REFLECTION}/ServerReflectionInfo": Rule(needs=Caller.ANYONE),
}
