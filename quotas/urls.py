"""Routes of quotas, mounted under /api/v1/."""

from django.urls import path

from quotas.api import LedgerView, QuotaView

urlpatterns = [
    path("quota", QuotaView.as_view(), name="quota"),
    path("ledger", LedgerView.as_view(), name="ledger"),
]
