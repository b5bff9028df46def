"""The app `runs`."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"
