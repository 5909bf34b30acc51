"""Amazon SQS and SNS."""

from __future__ import annotations

from .sns_sink import SnsSink
from .sqs_sink import SqsSink
from .sqs_source import SqsSource

__all__ = ["SnsSink", "SqsSink", "SqsSource"]
