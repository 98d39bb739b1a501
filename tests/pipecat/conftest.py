"""Fixtures of the Pipecat service's tests; `pipelines` runs their pipelines."""

import pytest
from pipelines import SENTENCE, TOKEN, Mode


@pytest.fixture(params=[SENTENCE, TOKEN], ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param
