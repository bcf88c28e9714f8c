"""OpenAI's HTTP surfaces: wire formats and nothing else. What they ask for goes to the orchestrator."""
