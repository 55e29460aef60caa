"""Requests, search drivers, reports, launch artefacts, command line and service."""
