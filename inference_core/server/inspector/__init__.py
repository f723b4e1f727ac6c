"""The inspector: a user's memories as web pages under ``/ui``, for people. Looking changes nothing."""
