"""Speaks the sharing server's REST protocol: profiles, authentication, transport, endpoints, wire records."""
