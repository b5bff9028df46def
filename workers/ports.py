"""What a context needs from outside, in a real worker: artifacts, uploaded files, and the event writer."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from runs.errors import NoSuchFile
from runs.models import Run
from runs.outcomes import InvalidInput
from runs.services import read_upload, store_artifact
from workers.context import InputFile
from workers.units import Units


class AttemptIsFenced(RuntimeError):
    """The run is somebody else's by now: this attempt may not write any more."""


class WorkerPorts:
    """The ports of one claimed run."""

    def __init__(self, run: Run, token: str, units: Units, flush: Callable[[], Awaitable[None]]) -> None:
        self._run = run
        self._token = token
        self._units = units
        self._flush = flush

    async def store_artifact(self, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        """Store bytes under the attempt's fence; raises AttemptIsFenced."""
        run = self._run

        def work() -> dict[str, Any] | None:
            return store_artifact(
                run_id=run.pk,
                fence=run.fence,
                claim_token=self._token,
                name=name,
                data=data,
                content_type=content_type,
            )

        stored = await self._units.run(work)
        if stored is None:
            raise AttemptIsFenced(str(run.pk))
        return stored

    async def open_file(self, file_id: UUID) -> InputFile:
        try:
            row, data = await self._units.run(lambda: read_upload(file_id=file_id, account_id=self._run.account_id))
        except (NoSuchFile, OSError) as error:
            raise InvalidInput(f"The uploaded file {file_id} cannot be read: {error}") from error
        return InputFile(row.name, row.content_type, data)

    async def flush(self) -> None:
        await self._flush()
