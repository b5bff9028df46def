"""Files and agents over HTTP: uploads for inputs, artifacts of runs, the list of agents."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import StreamingHttpResponse
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ParseError
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.models import Account
from quotas.openapi import problems
from runs.agents import AgentNotRegistered, AgentSpec, get_agent, list_agents
from runs.downloads import send_file
from runs.errors import InvalidRequest, NoSuchAgent, NoSuchArtifact
from runs.file_serializers import (
    AgentOut,
    AgentPage,
    ArtifactPage,
    FileIn,
    FileOut,
)
from runs.models import Artifact, Run
from runs.selectors import get_artifact, get_run
from runs.services.estimating import sample_estimate
from runs.services.files import clean_name, open_artifact, store_upload
from runs.uploads import checked_type


class ArtifactsView(ApiView):
    """The files a run made."""

    @extend_schema(operation_id="list_artifacts", tags=["files"], responses={200: ArtifactPage, **problems(404)})
    def get(self, request: Request, run_id: UUID) -> Response:  # noqa: ARG002
        """List the run's artifacts by name."""
        run = get_run(run_id, account=self.caller.account)
        rows = [self._shown(run, row) for row in run.artifacts.order_by("name")]
        return Response(ArtifactPage({"results": rows, "next": None}).data)

    @staticmethod
    def _shown(run: Run, row: Artifact) -> dict[str, Any]:
        return {
            "name": row.name,
            "size": row.size,
            "content_type": row.content_type,
            "made_at": row.made_at,
            "url": reverse("run-artifact", args=[run.id, row.name]),
        }


class ArtifactView(ApiView):
    """One file a run made."""

    @extend_schema(
        operation_id="get_artifact",
        tags=["files"],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **problems(404)},
    )
    def get(self, request: Request, run_id: UUID, name: str) -> StreamingHttpResponse:
        """Download the artifact, as an attachment of its own type."""
        run = get_run(run_id, account=self.caller.account)
        row = get_artifact(run, name)
        try:
            file = open_artifact(row)
        except FileNotFoundError:
            raise NoSuchArtifact(run=str(run.id), name=name) from None
        return send_file(
            request._request,  # noqa: SLF001  Django's request says which kind of server this is
            file,
            name=row.name,
            content_type=row.content_type,
            size=row.size,
        )


class FilesView(ApiView):
    """Uploads."""

    scopes = {"POST": "submit"}
    parser_classes = [MultiPartParser]

    @extend_schema(
        operation_id="upload_file",
        tags=["files"],
        request={"multipart/form-data": FileIn},
        responses={201: FileOut, **problems(413, 415)},
    )
    def post(self, request: Request) -> Response:
        """Upload one file of at most 50 MiB: text, PDF, JSON, an office document or an image."""
        try:
            given = request.data
        except (LookupError, ValueError):  # a part whose header names an encoding that does not exist
            raise ParseError("The multipart body is malformed.") from None
        upload = self._only_file(given, request)
        name = clean_name(upload.name or "")
        stored = store_upload(
            account=self.caller.account,
            name=name,
            content_type=checked_type(upload, name),
            chunks=upload.chunks(),
        )
        return Response(FileOut(stored).data, status=201)

    @staticmethod
    def _only_file(given: Any, request: Request) -> "UploadedFile[Any]":
        unknown = [key for key in given if key != "file"]
        if unknown:
            raise InvalidRequest(field=ascii(unknown[0][:60]), problem="this form has one field, `file`")
        uploads = request.FILES.getlist("file")
        if len(uploads) != 1 or len(given.getlist("file")) != 1:
            raise InvalidRequest(field="file", problem="send exactly one file in it")
        upload: UploadedFile[Any] = uploads[0]
        return upload


class AgentsView(ApiView):
    """The agents."""

    @extend_schema(operation_id="list_agents", tags=["agents"], responses={200: AgentPage, **problems()})
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """List the agents of this instance by name."""
        rows = [agent_json(spec, self.caller.account) for spec in list_agents()]
        return Response(AgentPage({"results": rows, "next": None}).data)


class AgentView(ApiView):
    """One agent."""

    @extend_schema(operation_id="get_agent", tags=["agents"], responses={200: AgentOut, **problems(404)})
    def get(self, request: Request, name: str) -> Response:  # noqa: ARG002
        """Return the agent's input schema, defaults and estimate."""
        try:
            spec = get_agent(name)
        except AgentNotRegistered:
            raise NoSuchAgent(agent=name) from None
        return Response(AgentOut(agent_json(spec, self.caller.account)).data)


def agent_json(spec: AgentSpec, account: Account) -> dict[str, Any]:
    """Return what clients of an account see of an agent."""
    return {
        "name": spec.name,
        "version": spec.version,
        "description": spec.description,
        "input_schema": spec.input_schema,
        "sample": spec.sample,
        "estimate": sample_estimate(spec, account),
        "estimate_kind": spec.estimate.kind,
        "queue": spec.queue,
        "priority": spec.priority,
        "time_limit_seconds": spec.time_limit_seconds,
        "queue_wait_seconds": spec.queue_wait_seconds or settings.QUEUE_WAIT_SECONDS,
        "wall_clock_seconds": spec.wall_clock_seconds or settings.WALL_CLOCK_SECONDS,
        "no_progress_seconds": spec.no_progress_seconds,
        "max_attempts": spec.attempts_by(spec.policy),
        "max_running": spec.max_running,
        "backoff": {"base": spec.backoff.base, "cap": spec.backoff.cap},
        "dedupe_seconds": spec.dedupe_seconds,
        "policy": spec.policy,
        "on_drain": spec.on_drain or settings.DRAIN_POLICY,
        "isolation": spec.isolation,
        "extend": spec.may_extend,
        "allow": sorted(spec.allow),
    }
