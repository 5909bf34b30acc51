"""Amazon SQS and SNS."""

from ..connection import extra

with extra("aiobotocore", "aws"):
    from .connection import AwsConnection
    from .sns_sink import SnsSink
    from .sqs_sink import SqsSink
    from .sqs_source import SqsSource

__all__ = ["AwsConnection", "SnsSink", "SqsSink", "SqsSource"]
