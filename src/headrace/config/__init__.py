"""Every option of Headrace: the tables, their parsing, and what a broker, a topic or a group ends up with.

Pure: text and maps in, values and errors out. Where configuration is kept is the caller's business.
"""

from .broker import BrokerConfig
from .options import ConfigError, Option, Type
from .properties import parse_properties
from .topic import LogConfig

__all__ = ["BrokerConfig", "ConfigError", "LogConfig", "Option", "Type", "parse_properties"]
