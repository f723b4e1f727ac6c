"""What every write passes beside its row: events, versions, seals, quotas, fences, redaction, expiry."""
