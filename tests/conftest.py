"""What all tests share: how much Hypothesis tries.

`make test` runs few examples of each; `pytest --hypothesis-profile thorough` many.
"""

from hypothesis import HealthCheck, settings

_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

settings.register_profile("default", _COMMON, stateful_step_count=30)
settings.register_profile("thorough", _COMMON, max_examples=1000, stateful_step_count=50)
settings.load_profile("default")
