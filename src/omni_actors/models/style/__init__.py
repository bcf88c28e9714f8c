"""Style transfer: a picture in the manner of a painting, in one step."""
