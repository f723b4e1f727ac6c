"""Redis: `backend` reads and writes, `layout` names keys, `server` has the connections, `repair` mends and erases."""
