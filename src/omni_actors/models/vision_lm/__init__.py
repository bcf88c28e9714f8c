"""Vision-language models: prompts with pictures. vLLM computes them."""
