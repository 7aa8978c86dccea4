"""Schema revisions, applied by planner.store.database.Database.migrate."""
