"""The app `workers`."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    name = "workers"

    def ready(self) -> None:
        from runs.services import requeue  # noqa: PLC0415  models are there from here on
        from runs.why import answered_by  # noqa: PLC0415
        from workers import why  # noqa: PLC0415
        from workers.dead_letters import run_requeued  # noqa: PLC0415

        requeue.tells(run_requeued)
        answered_by(why.explain)
