"""The sharing server's REST side: profiles, authentication, transport, endpoints, wire records."""
