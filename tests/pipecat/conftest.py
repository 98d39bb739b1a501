"""What the tests of the Pipecat service share; what runs their pipelines is `pipelines`."""

import pytest
from pipelines import SENTENCE, TOKEN, Mode


@pytest.fixture(params=[SENTENCE, TOKEN], ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    """A test that takes it runs in both modes: by the sentence and by the token."""
    return request.param
