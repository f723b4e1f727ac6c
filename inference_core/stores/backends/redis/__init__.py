"""Redis: `backend` reads, writes and mends, `layout` names keys, `server` has the connections, `address` the URLs."""
