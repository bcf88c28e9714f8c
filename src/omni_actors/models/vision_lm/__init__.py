"""Vision-language models: prompts with pictures, computed by vLLM."""
