"""Sentences of streamed text in SENTENCE mode: they do not end at abbreviations and ordinals."""

from time import process_time

import pytest
from pipelines import talk

from qwen_megakernel.pipecat.settings import SentenceAggregator

# Each "|" is the end of a sentence.
TEXTS = (
    "M. Dupont habite av. Foch. |Il part demain.",
    "I met Prof. Jones at 5 p.m. Eastern. |Then we left. |“Really?” |Yes!",
    "Mein 4. Versuch gelang. |Danach kam Dr. Weber.",
    "We did it! |🎉🎉 Now rest.",
    "他说「够了。」|然后走了。|真的吗？|好",
    "A heading\n\n|It is ready. <break time='700ms'/> <prosody rate='fast'>|We go.</prosody>",
)


async def cut(text: str, step: int) -> list[str]:
    aggregator = SentenceAggregator()
    found = []
    for begin in range(0, len(text), step):
        found += [each.text async for each in aggregator.aggregate(text[begin : begin + step])]
    last = await aggregator.flush()
    return found + ([last.text] if last else [])


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("text", TEXTS)
async def test_a_sentence_ends_at_no_abbreviation_however_its_text_arrives(text: str, step: int):
    wanted = [sentence.strip(" ") for sentence in text.split("|")]
    assert await cut(text.replace("|", ""), step) == wanted


async def test_a_sentence_is_passed_on_as_soon_as_the_next_one_begins():
    aggregator = SentenceAggregator()
    assert [each async for each in aggregator.aggregate("It is late. ")] == []
    found = [each.text async for each in aggregator.aggregate("W")]
    assert found == ["It is late."]
    assert aggregator.text.text == "W"
    await aggregator.handle_interruption()
    assert await aggregator.flush() is None


@pytest.mark.ci
async def test_the_time_for_a_long_sentence_is_linear():
    seconds = []
    for length in (4000, 16_000):
        begin = process_time()
        assert len(await cut("word no. " * (length // 9), 2)) == 1
        seconds.append(process_time() - begin)
    assert seconds[1] < 10 * seconds[0]  # 16 times in a quadratic scan


async def test_the_service_speaks_whole_sentences():
    async with talk() as run:
        await run.turn("M. Dupont habite ", "av. Foch. Il part demain.", ends=1)
    assert len(run.engine.streams) == 2
