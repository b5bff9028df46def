"""Routes of runs, mounted under /api/v1/."""

from django.urls import path

from runs import api, api_files, api_money, sse

urlpatterns = [
    path("runs", api.RunsView.as_view(), name="runs"),
    path("runs/<uuid:run_id>", api.RunView.as_view(), name="run"),
    path("runs/<uuid:run_id>/cancel", api.CancelView.as_view(), name="run-cancel"),
    path("runs/<uuid:run_id>/retry", api.RetryView.as_view(), name="run-retry"),
    path("runs/<uuid:run_id>/ticket", api.TicketView.as_view(), name="run-ticket"),
    path("runs/<uuid:run_id>/events", sse.run_events, name="run-events"),
    path("runs/<uuid:run_id>/artifacts", api_files.ArtifactsView.as_view(), name="run-artifacts"),
    path(
        "runs/<uuid:run_id>/artifacts/<path:name>",
        api_files.ArtifactView.as_view(),
        name="run-artifact",
    ),
    path("sessions/<path:key>/events", sse.session_events, name="session-events"),
    path("files", api_files.FilesView.as_view(), name="files"),
    path("agents", api_files.AgentsView.as_view(), name="agents"),
    path("agents/<path:name>", api_files.AgentView.as_view(), name="agent"),
    path("ledger", api_money.LedgerView.as_view(), name="ledger"),
    path("spending", api_money.SpendingView.as_view(), name="spending"),
]
