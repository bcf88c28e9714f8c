"""Qwen3-TTS (12 Hz): a talker generates codec frames, and a codec decodes the frames into sound."""
