"""What outlives a request: application data, data keys, results of what may happen only once. Imports no MCP SDK."""
