"""The serving half of media: the client of the media process, uploads of bodies, and downloads of media by URL."""
