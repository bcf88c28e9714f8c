"""Voxtral: clips → features → text, as a chat or as a transcript."""

from omni_actors.models.common.listening_pipeline import listening_pipeline

LANGUAGES = ("en", "es", "fr", "pt", "hi", "de", "nl", "it")
"""Those that its model card names; it also knows others."""

PIPELINE = listening_pipeline(
    "voxtral",
    "omni_actors.models.voxtral",
    architecture="VoxtralForConditionalGeneration",
    checkpoints=("mistralai/Voxtral-Mini-3B-2507", "mistralai/Voxtral-Small-24B-2507"),
    languages=LANGUAGES,
    chats=True,
    max_seconds=2400.0,
    doc="Listens, answers in text, and transcribes.",
)
