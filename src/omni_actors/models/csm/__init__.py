"""Sesame's CSM: a backbone that says each frame's first code, a depth decoder for the others, and Mimi."""
