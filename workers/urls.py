"""Routes of workers, mounted under /api/v1/."""

from django.urls import path

from workers import api, api_cases

urlpatterns = [
    path("dead-letters", api.DeadLettersView.as_view(), name="dead-letters"),
    path("dead-letters/<int:letter_id>", api.DeadLetterView.as_view(), name="dead-letter"),
    path("dead-letters/<int:letter_id>/requeue", api.RequeueView.as_view(), name="dead-letter-requeue"),
    path("dead-letters/<int:letter_id>/discard", api.DiscardView.as_view(), name="dead-letter-discard"),
    path("cases", api_cases.CasesView.as_view(), name="cases"),
    path("cases/<int:case_id>", api_cases.CaseView.as_view(), name="case"),
    path("queue/status", api.QueueStatusView.as_view(), name="queue-status"),
    path("workers", api.WorkersView.as_view(), name="workers"),
]
