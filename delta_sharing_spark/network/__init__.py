"""Makes requests to servers of every kind: settings, connections, sessions, retries, redirects, bounds."""
