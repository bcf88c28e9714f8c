"""The admin routes: what operators do while it serves, who may, and where the server's own admin key is found."""
