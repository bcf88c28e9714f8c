"""Cases that users of multimodal servers reported, by their numbers: each stands for a kind."""
