"""The app `quotas`."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "quotas"
