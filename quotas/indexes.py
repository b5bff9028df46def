"""Indexes on tables that are written meanwhile: PostgreSQL makes them without stopping the writers."""

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import AddIndex
from django.db.migrations.state import ProjectState


class AddIndexConcurrently(AddIndex):
    """Add an index of any database; on PostgreSQL concurrently, so its migration must have `atomic = False`.

    What an interrupted try left there, an invalid index, is dropped first: the migration can be run again. Left out is
    one with a condition where the database has none (MySQL, MariaDB): Django would make it of all rows.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if self._is_left_out(schema_editor):
            return
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
            postgresql: Any = schema_editor
            postgresql.add_index(model, self.index, concurrently=True)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if not self._is_left_out(schema_editor):
            super().database_backwards(app_label, schema_editor, from_state, to_state)

    def _is_left_out(self, schema_editor: BaseDatabaseSchemaEditor) -> bool:
        return self.index.condition is not None and not schema_editor.connection.features.supports_partial_indexes
