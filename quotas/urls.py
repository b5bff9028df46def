"""Routes of quotas, mounted under /api/v1/."""

from django.urls import path

from quotas.api import QuotaView

urlpatterns = [
    path("quota", QuotaView.as_view(), name="quota"),
]
