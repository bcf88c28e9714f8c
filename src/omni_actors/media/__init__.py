"""The media process: decoding of images, audio and video, encoding of audio, parsing of big request bodies. No torch.

It runs as a worker (stage ``media``, engine :class:`omni_actors.media.engine.MediaEngine`), because one long C call of
a codec or one big JSON parse in the serving process would hold up every client. The serving side talks to it through
:class:`omni_actors.media.client.MediaService`; decoded media go to the models' workers over ordinary edges, never
through the serving process.

``questions`` is the vocabulary between both sides, ``wav`` what both sides can do in place; ``fetch`` brings what a
client names by URL. Those and ``client`` run in the serving process and import neither numpy nor a codec library.
"""
