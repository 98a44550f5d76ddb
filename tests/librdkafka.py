"""Settings for librdkafka's clients in tests that take brokers away."""

STEADY = {"metadata.recovery.strategy": "none"}
"""Ask the brokers that are known until one is back. With "rebootstrap", its default, librdkafka (2.15.1 and 2.16.1) now
and then stops for ever: when the last broker that it is connected to goes away, it lets go of all of them at once, and
its main thread never wakes up again. A reader then sees nothing more, and a member holds up its group."""
