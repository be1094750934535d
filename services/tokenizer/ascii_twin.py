"""A tokenizer for ASCII text alone, which most of an agent's prompt is: the same ids, less work."""

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Sequence

from services.tokenizer.certify import ascii_stages


def ascii_twin(plain: Tokenizer) -> Tokenizer:
    """What gives the ids of ``plain``, which is certified and finds no added tokens, wherever a text is ASCII.

    ASCII is its own normal form, and needs no stage that looks for other characters only. Shares the model.
    """
    twin = Tokenizer(plain.model)
    stages = plain.pre_tokenizer
    if isinstance(stages, Sequence):
        stages = Sequence(ascii_stages(stages))
    if stages is not None:
        twin.pre_tokenizer = stages
    return twin
