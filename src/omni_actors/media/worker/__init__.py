"""The worker half of media: the engine of the media process, and its decoders and encoders."""
