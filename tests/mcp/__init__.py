"""Tests of the MCP server, which offers plans to agents."""
