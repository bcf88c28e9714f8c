"""``/v1/images``: pictures from text, edits of pictures, and pictures in chats."""
