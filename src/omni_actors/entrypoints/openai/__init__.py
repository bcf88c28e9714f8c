"""OpenAI's HTTP API: wire formats and handlers. Requests go on to the orchestrator."""
