"""Alembic's environment. `Database.migrate` runs it on a connection of its own and inside a transaction of its own."""

from alembic import context

from registry_service.storage.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
