"""The admin routes: commands to replicas while the server runs, access to them, and the server's own admin key."""
