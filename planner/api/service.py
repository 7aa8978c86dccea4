"""PlannerService: one class per group of calls, composed."""

from __future__ import annotations

from access.files import WatchedCredentials
from planner.api.blob_calls import BlobCalls
from planner.api.blob_collection import BlobCollection
from planner.api.checkpoint_calls import CheckpointCalls
from planner.api.computing import Computing
from planner.api.deployment_calls import DeploymentCalls
from planner.api.graph_calls import GraphCalls
from planner.api.inventory_calls import InventoryCalls
from planner.api.plan_calls import PlanCalls
from planner.api.plan_runner import PlanRunner
from planner.api.profile_calls import ProfileCalls
from planner.api.recent_plans import RecentPlans
from planner.api.upload_locks import UploadLocks
from planner.dispatch.dispatcher import Dispatcher
from planner.settings import Settings
from planner.store.blobs import BlobStore
from planner.store.database import Database
from protos.v1 import planner_pb2_grpc


class PlannerService(
    BlobCalls,
    GraphCalls,
    InventoryCalls,
    PlanCalls,
    ProfileCalls,
    DeploymentCalls,
    CheckpointCalls,
    planner_pb2_grpc.PlannerServiceServicer,
):
    """Calls raise planner.errors; planner.api.status turns them into statuses."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        blobs: BlobStore,
        checks: Computing,
        runner: PlanRunner,
        dispatcher: Dispatcher,
        collection: BlobCollection,
        credentials: WatchedCredentials | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._blobs = blobs
        self._checks = checks
        self._runner = runner
        self._dispatcher = dispatcher
        self._collection = collection
        self._credentials = credentials
        self._recent_plans = RecentPlans()
        self._upload_locks = UploadLocks(settings.max_uploads_per_caller)
