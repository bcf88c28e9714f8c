"""The writing of pictures: the engine of the stage ``pictures``, and its file formats.

- ``engine.py``: the engine.
- ``formats.py``: how a picture becomes a file of the format that a request names.
- ``png.py``: PNG, written in slices.
- ``threads.py``: threads for the libraries that write a whole file in one call.
- ``request.py``: a request inside the engine.
"""
