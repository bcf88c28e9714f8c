"""PixArt-Sigma."""
