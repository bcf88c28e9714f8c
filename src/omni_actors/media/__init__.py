"""The media process: decoding of images, audio and video, encoding of audio, parsing of large request bodies. No torch.

The media process is a worker (stage ``media``, engine :class:`omni_actors.media.worker.engine.MediaEngine`), because
one long C call of a codec or one large JSON parse in the serving process would hold up every client. Decoded media go
to the models' workers over ordinary edges, never through the serving process.

* ``service`` is the serving half: :class:`omni_actors.media.service.client.MediaService` asks the media process, and
  ``fetch`` downloads media that a client names by URL. The serving half imports neither numpy nor a codec library.
* ``worker`` is the worker half: the engine, and the decoders and encoders that the engine drives.
* ``questions`` are the messages between both halves. ``limits``, ``addresses``, ``wav`` and ``stage`` are used by both.

An import contract keeps the two halves apart.
"""
