"""Plans for agents: the server that speaks MCP."""
