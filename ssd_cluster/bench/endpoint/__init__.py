"""One client for every OpenAI-compatible server: ours, vLLM's, llama.cpp's. Token counts come from usage only."""
