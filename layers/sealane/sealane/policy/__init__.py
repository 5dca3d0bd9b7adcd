"""Who may speak to this endpoint: hosts, origins, CORS, body size. Knows neither AWS events nor the SDK."""
