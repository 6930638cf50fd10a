"""How requests are made, whoever is asked: settings, connections, sessions, retries, redirects, bounds."""
